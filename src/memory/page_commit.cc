#include "src/memory/page_commit.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
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

// True if the kernel has MADV_POPULATE_WRITE: Linux since 5.14.
bool PopulatesForWriting() {
  const size_t bytes = PageBytes();
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const bool populates = madvise(page, bytes, MADV_POPULATE_WRITE) == 0;
  munmap(page, bytes);
  return populates;
}

absl::Status NoMemory(size_t bytes, std::string_view reason, const FreeMemory& left) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the node has no memory for ", bytes, " reserved bytes: ", ToAbsl(reason),
                   ": use fewer ranks on the node, or free memory. On this node ", left.ScarcestResource()));
}

}  // namespace

PageCommitter::PageCommitter(std::byte* base, size_t bytes)
    : base_(base),
      bytes_(bytes),
      populates_(PopulatesForWriting()),
      committed_((bytes + kChunkBytes - 1) / kChunkBytes) {}

absl::Status PageCommitter::Commit(size_t offset, size_t bytes, FreeMemoryReader free_memory) {
  const size_t last = (offset + bytes + kChunkBytes - 1) / kChunkBytes;
  for (size_t begin = offset / kChunkBytes; begin < last;) {
    if (committed_[begin]) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < last && !committed_[end] && (end - begin) * kChunkBytes < kStepBytes) ++end;
    WEFT_RETURN_IF_ERROR(CommitChunks(begin, end, free_memory));
    std::fill(committed_.begin() + static_cast<ptrdiff_t>(begin),
              committed_.begin() + static_cast<ptrdiff_t>(end), true);
    begin = end;
  }
  return absl::OkStatus();
}

absl::StatusOr<FreeMemory> PageCommitter::Committable(FreeMemoryReader free_memory) const {
  WEFT_ASSIGN_OR_RETURN(FreeMemory left, free_memory());
  left.host -= std::min(left.host, kMarginBytes);
  if (!populates_) left.file_system -= std::min(left.file_system, kMarginBytes);
  left.file_sizes = left.address_space = FreeMemory::kUnlimited;
  return left;
}

absl::Status PageCommitter::CheckFree(size_t bytes, FreeMemoryReader free_memory) {
  if (bytes > allowance_) {
    WEFT_ASSIGN_OR_RETURN(const FreeMemory left, Committable(free_memory));
    if (bytes > left.least()) {
      return NoMemory(bytes,
                      absl::StrCat("only ", left.least(), " are left, besides ", kMarginBytes, " of the host",
                                   populates_ ? "" : " and of the file system", " that stay free"),
                      left);
    }
    // Other ranks take of the file system, too: near its end, its free bytes are read again at each step.
    const size_t before_end = left.file_system - std::min(left.file_system, kMarginBytes);
    allowance_ = std::max(bytes, std::min({kStepBytes, left.host, before_end}));
  }
  allowance_ -= bytes;
  return absl::OkStatus();
}

absl::Status PageCommitter::CommitChunks(size_t begin, size_t end, FreeMemoryReader free_memory) {
  const size_t page = PageBytes();
  std::byte* first = base_ + begin * kChunkBytes;
  first -= reinterpret_cast<uintptr_t>(first) % page;  // Mappings are whole pages.
  const std::byte* last = base_ + std::min(end * kChunkBytes, bytes_);
  const auto bytes = static_cast<size_t>(last - first);
  WEFT_RETURN_IF_ERROR(CheckFree(bytes, free_memory));
  PopulateHugePages(first, bytes);
  if (!populates_) {
    TouchPages(first, last, page);
    return absl::OkStatus();
  }
  if (madvise(first, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  const std::string reason = errno == EFAULT ? "their file system is full" : std::strerror(errno);
  WEFT_ASSIGN_OR_RETURN(const FreeMemory left, Committable(free_memory));
  return NoMemory(bytes, reason, left);
}

}  // namespace weft::internal
