// Size of a page of memory.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace weft {

inline size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace weft
