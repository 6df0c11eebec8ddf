#include "src/memory/page_commit.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>

#include "weft/core/status.h"

namespace weft::internal {
namespace {

// What is remembered, and so committed, at once: small next to what modules allocate, large next to a system
// call.
constexpr size_t kChunkBytes = size_t{256} << 10;

// Writes one byte a page without changing it: a neighbour's first or last bytes may share the page.
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
    while (end < last && !committed_[end]) ++end;
    WEFT_RETURN_IF_ERROR(CommitChunks(begin, end, free_bytes));
    std::fill(committed_.begin() + static_cast<ptrdiff_t>(begin),
              committed_.begin() + static_cast<ptrdiff_t>(end), true);
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status PageCommitter::CommitChunks(size_t begin, size_t end,
                                         absl::FunctionRef<absl::StatusOr<size_t>()> free_bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::byte* first = base_ + begin * kChunkBytes;
  first -= reinterpret_cast<uintptr_t>(first) % page;  // Mappings are whole pages.
  const std::byte* last = base_ + std::min(end * kChunkBytes, bytes_);
  const auto bytes = static_cast<size_t>(last - first);
  if (madvise(first, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) {
    return absl::ResourceExhaustedError(absl::StrCat("the node has no memory for ", bytes,
                                                     " bytes that were reserved: ", std::strerror(errno)));
  }
  // A kernel before 5.14: writes do the same, if there is room.
  WEFT_ASSIGN_OR_RETURN(const size_t available, free_bytes());
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("the node has no memory for ", bytes,
                                                     " bytes that were reserved: ", available, " are free"));
  }
  TouchPages(first, last, page);
  return absl::OkStatus();
}

}  // namespace weft::internal
