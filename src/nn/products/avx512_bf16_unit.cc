// Products of panels by AVX512-BF16. One of the sources that are compiled for it. They call no inline
// function of other headers: the linker might keep their copy of one for all callers.
#include <immintrin.h>

#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/panel_units.h"

namespace weft::panels {
namespace {

// Rows whose sums are in registers at once: 8 rows of 32 columns take 16 of the 32 registers.
constexpr int64_t kRows = 8;

void Begin() {}
void End() {}

__m512bh Words(__m512i words) { return __builtin_bit_cast(__m512bh, words); }

// The product of rows [0, 8) of `a` with the panel `b`. `left` and `right` are the rows' sums in the two
// quadrants.
void MultiplyRows(const uint32_t* a, const uint32_t* b, int64_t blocks, bool continues, float* left,
                  float* right) {
  __m512 sums[kRows][2];
  for (int64_t row = 0; row < kRows; ++row) {
    sums[row][0] = continues ? _mm512_loadu_ps(left + row * kTile) : _mm512_setzero_ps();
    sums[row][1] = continues ? _mm512_loadu_ps(right + row * kTile) : _mm512_setzero_ps();
  }
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t pair = 0; pair < kTile; ++pair) {
      const __m512bh b_left = Words(_mm512_loadu_si512(b + pair * kTile));
      const __m512bh b_right = Words(_mm512_loadu_si512(b + kTileWords + pair * kTile));
#pragma GCC unroll 8
      for (int64_t row = 0; row < kRows; ++row) {
        const __m512bh value = Words(_mm512_set1_epi32(static_cast<int>(a[row * kTile + pair])));
        sums[row][0] = _mm512_dpbf16_ps(sums[row][0], value, b_left);
        sums[row][1] = _mm512_dpbf16_ps(sums[row][1], value, b_right);
      }
    }
    a += kBlockWords;
    b += kBlockWords;
  }
  for (int64_t row = 0; row < kRows; ++row) {
    _mm512_storeu_ps(left + row * kTile, sums[row][0]);
    _mm512_storeu_ps(right + row * kTile, sums[row][1]);
  }
}

void Multiply(const uint32_t* a, const uint32_t* b, int64_t blocks, bool continues, float* sums) {
  for (int64_t row = 0; row < kPanel; row += kRows) {
    const int64_t tile = row / kTile;
    const int64_t in_tile = row % kTile * kTile;
    float* left = sums + tile * 2 * kTileWords + in_tile;
    MultiplyRows(a + tile * kTileWords + in_tile, b, blocks, continues, left, left + kTileWords);
  }
}

}  // namespace

const PanelUnit kAvx512Bf16Unit = {Begin, End, Multiply};

}  // namespace weft::panels
