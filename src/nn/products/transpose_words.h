// Transposition of words by AVX-512. Included only by sources that are compiled for it. The namespace is
// anonymous, so that no linker takes this code for other sources.
#pragma once

#include <immintrin.h>

namespace weft::panels {
namespace {

// Transposes 16 x 16 words.
inline void Transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i quads[16];
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // quads[4 g + c]: column c, 4 + c, 8 + c, 12 + c of rows 4 g to 4 g + 3, one in each 128 bits.
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x88);
    const __m512i low23 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xDD);
    const __m512i high23 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xDD);
    rows[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    rows[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

}  // namespace
}  // namespace weft::panels
