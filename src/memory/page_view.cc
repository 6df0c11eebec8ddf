#include "src/memory/page_view.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include "weft/core/page_bytes.h"
#include "weft/core/status.h"

namespace weft::internal {

absl::StatusOr<PageView> PageView::Map(absl::Span<const PageRange> ranges) {
  size_t bytes = 0;
  for (const PageRange& range : ranges) bytes += range.bytes;
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the kernel refused to map a view of ", bytes, " bytes: ", std::strerror(errno)));
  }
  PageView view(static_cast<std::byte*>(base), bytes);
  std::byte* target = view.base_;
  for (const PageRange& range : ranges) {
    if (!MapPagesAgain(range.begin, range.bytes, target)) {
      return absl::ResourceExhaustedError(absl::StrCat("the kernel refused to map ", range.bytes,
                                                       " bytes of a segment again: ", std::strerror(errno)));
    }
    target += range.bytes;
  }
  return view;
}

PageView::PageView(PageView&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PageView& PageView::operator=(PageView&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PageView::~PageView() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

std::optional<uint64_t> PageView::OffsetOf(const void* pointer, size_t bytes) const {
  const uint64_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(base_);
  return offset < bytes_ && bytes <= bytes_ - offset ? std::optional(offset) : std::nullopt;
}

}  // namespace weft::internal
