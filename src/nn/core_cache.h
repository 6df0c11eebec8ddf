// The cache that a core has to itself.
#pragma once

#include <cstdint>

namespace weft {

// Its second-level cache, in bytes; 1 MiB where the system does not tell.
int64_t CoreCacheBytes();

}  // namespace weft
