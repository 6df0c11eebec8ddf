// Plain and non-temporal copies.
#pragma once

#include <cstddef>

namespace weft {

// Copies between buffers that do not overlap. `nontemporal` writes around the caches: the thread must then
// call FenceStreams before it lets anybody know.
void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool nontemporal);

// Whether results are worth writing around the caches, and can be, where the ranks of a node touch `bytes` of
// memory together: more than a quarter of the last-level cache. It holds what computes beside them, too; what
// is written first would be gone before anybody came to read it, and each line would have been read for
// nothing.
bool WritesAroundCaches(size_t bytes);

}  // namespace weft
