#include "src/memory/page_commit.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>

#include "weft/core/huge_pages.h"
#include "weft/core/page_bytes.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Bytes that are committed at once. Small compared with the blocks of a heap; large enough that the cost of
// the system call does not matter.
constexpr size_t kChunkBytes = size_t{256} << 10;

// Writes to each page without changing its contents: the page may hold bytes of an adjacent segment.
void TouchPages(std::byte* begin, const std::byte* end, size_t page) {
  for (std::byte* at = begin; at < end; at += page) {
    std::atomic_ref(*reinterpret_cast<unsigned char*>(at)).fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

PageCommitter::PageCommitter(std::byte* base, size_t bytes)
    : base_(base), bytes_(bytes), committed_((bytes + kChunkBytes - 1) / kChunkBytes) {}

absl::Status PageCommitter::Commit(size_t offset, size_t bytes,
                                   absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes) {
  const size_t last = (offset + bytes + kChunkBytes - 1) / kChunkBytes;
  for (size_t begin = offset / kChunkBytes; begin < last;) {
    if (committed_[begin]) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < last && !committed_[end] && (end - begin) * kChunkBytes < kStepBytes) ++end;
    WEFT_RETURN_IF_ERROR(CommitChunks(begin, end, free_bytes));
    std::fill(committed_.begin() + static_cast<ptrdiff_t>(begin),
              committed_.begin() + static_cast<ptrdiff_t>(end), true);
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status PageCommitter::CheckFree(size_t bytes, absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes) {
  if (bytes > allowance_) {
    WEFT_ASSIGN_OR_RETURN(const size_t available, free_bytes());
    if (available < kMarginBytes || bytes > available - kMarginBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the node has no memory for ", bytes, " reserved bytes: only ", available, " are free, of which ",
          kMarginBytes, " stay free: use fewer ranks on the node, or free memory"));
    }
    allowance_ = std::max(bytes, std::min(kStepBytes, available - kMarginBytes));
  }
  allowance_ -= bytes;
  return absl::OkStatus();
}

absl::Status PageCommitter::CommitChunks(size_t begin, size_t end,
                                         absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes) {
  const size_t page = PageBytes();
  std::byte* first = base_ + begin * kChunkBytes;
  first -= reinterpret_cast<uintptr_t>(first) % page;  // Mappings are whole pages.
  const std::byte* last = base_ + std::min(end * kChunkBytes, bytes_);
  const auto bytes = static_cast<size_t>(last - first);
  WEFT_RETURN_IF_ERROR(CheckFree(bytes, free_bytes));
  PopulateHugePages(first, bytes);
  if (madvise(first, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno == EINVAL) {  // Kernels before 5.14 do not have MADV_POPULATE_WRITE.
    TouchPages(first, last, page);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("the node has no memory for ", bytes,
                                                   " reserved bytes: ", std::strerror(errno),
                                                   ": use fewer ranks on the node, or free memory"));
}

}  // namespace weft::internal
