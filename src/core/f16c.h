// Conversions between f16 and f32 by instructions of the CPU (F16C), three to four times as fast in the cache
// as those of weft/core/dtype.h, and to the same bits.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "weft/core/dtype.h"

namespace weft::internal::f16c {

// False on other CPUs, and if the compiler has no such instructions. The functions below then must not be
// called.
bool IsAvailable();
// target[i] = source[i] * scale, rounded to f32, and then to f16 in Narrow. No overlap.
void Widen(const F16* source, float* target, int64_t count, float scale);
void Narrow(const float* source, F16* target, int64_t count, float scale);

}  // namespace weft::internal::f16c
