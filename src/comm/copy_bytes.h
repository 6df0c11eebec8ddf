// Plain and non-temporal copies.
#pragma once

#include <cstddef>

namespace weft {

// Copies between buffers that do not overlap. `nontemporal` writes around the caches: the thread must then
// call FenceNontemporal before it lets anybody know.
void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool nontemporal);

// Orders non-temporal writes of the calling thread before its later release stores.
void FenceNontemporal();

// Size of the last-level cache, read from the running system; a result larger than it is worth writing around
// it.
size_t LastLevelCacheBytes();

}  // namespace weft
