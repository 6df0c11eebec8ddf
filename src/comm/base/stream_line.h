// Non-temporal stores of one cache line, with the widest instructions of the target CPU.
#pragma once

#include <cstddef>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "src/comm/base/cache_line.h"

namespace weft {

// Copies one cache line with stores that bypass the caches. If the instruction set has no such stores
// (`kStreamsLines` is false), the stores are ordinary. `source` needs no alignment.
// REQUIRES: `target` is aligned to kLineBytes.
#if defined(__AVX512F__)
constexpr bool kStreamsLines = true;
inline void StreamLine(void* target, const void* source) {
  _mm512_stream_si512(static_cast<__m512i*>(target), _mm512_loadu_si512(source));
}
#elif defined(__SSE2__)
constexpr bool kStreamsLines = true;
inline void StreamLine(void* target, const void* source) {
  constexpr size_t kParts = kLineBytes / sizeof(__m128i);
  auto* to = static_cast<__m128i*>(target);
  const auto* from = static_cast<const __m128i*>(source);
  for (size_t i = 0; i < kParts; ++i) _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
}
#else
constexpr bool kStreamsLines = false;
inline void StreamLine(void* target, const void* source) { std::memcpy(target, source, kLineBytes); }
#endif

// Orders the non-temporal stores of the calling thread before its later release stores.
inline void FenceStreams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace weft
