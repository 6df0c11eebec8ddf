// Non-temporal copies for x86-64, all of which have SSE2.
#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "src/comm/copy_bytes.h"

namespace weft {

void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool nontemporal) {
  constexpr size_t kLine = 64;
  if (!nontemporal || bytes < 2 * kLine) {
    std::memcpy(target, source, bytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  std::memcpy(target, source, head);
  size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + done);
    auto* to = reinterpret_cast<__m128i*>(target + done);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(target + done, source + done, bytes - done);
}

void FenceNontemporal() { _mm_sfence(); }

}  // namespace weft
