// Pages of memory: their size, and further mappings of them.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <sys/mman.h>
#include <sys/syscall.h>

namespace weft {

inline size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Maps whole pages of a shared mapping once more, at reserved addresses. False with errno if the kernel
// refuses.
inline bool MapPagesAgain(std::byte* pages, size_t bytes, std::byte* target) {
  // An old size of 0 maps the pages once more instead of moving them. The C library's mremap is not called:
  // UCX, which MPI libraries load, replaces it by a function that ignores the target.
  return syscall(SYS_mremap, pages, 0UL, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target) != -1;
}

}  // namespace weft
