#include "src/comm/copy_bytes.h"

#include "weft/core/cache_size.h"

namespace weft {

bool WritesAroundCaches(size_t bytes) { return bytes > static_cast<size_t>(LastLevelCacheBytes()); }

}  // namespace weft
