// Limits of the buffers that collectives and messages take. Pure.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"

namespace weft {

// More bytes than a node has. Their product with the number of ranks fits 64 bits.
inline constexpr int64_t kMaxBufferBytes = int64_t{1} << 45;
inline constexpr char kMaxBufferText[] = "a buffer has at most 32 TiB";

inline int64_t MaxElements(DType dtype) { return kMaxBufferBytes / static_cast<int64_t>(SizeOf(dtype)); }

}  // namespace weft
