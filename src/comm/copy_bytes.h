// Plain and non-temporal copies.
#pragma once

#include <cstddef>

namespace weft {

// Copies between buffers that do not overlap. `nontemporal` writes around the caches, and ends with the store
// fence that orders those writes before any later release store of the calling thread.
void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool nontemporal);

// Size of the last-level cache, read from the running system; a result larger than it is worth writing around
// it.
size_t LastLevelCacheBytes();

}  // namespace weft
