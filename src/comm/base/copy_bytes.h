// Memory copies, with ordinary or non-temporal stores.
#pragma once

#include <cstddef>

namespace weft {

// Copies `bytes` bytes. `nontemporal` uses stores that bypass the caches.
// REQUIRES: the buffers do not overlap. After a non-temporal copy the thread calls FenceStreams before it
//   publishes the result.
void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool nontemporal);

// True if an operation should write its results with non-temporal stores: on CPUs that have such stores, if
// `bytes` exceeds half of the last-level cache. `bytes`: what the ranks of a node together write in the
// operation; in a reduction, twice that, as they read as much. The rest of the cache serves the computation
// that runs beside the operation. Above the limit, ordinary stores would read every line first, and evict the
// first lines before any rank reads them.
bool ShouldBypassCaches(size_t bytes);

}  // namespace weft
