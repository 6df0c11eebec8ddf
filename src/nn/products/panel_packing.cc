// Packing of panels. One of the sources that are compiled for AVX512-BF16. They call no inline
// function of other headers: the linker might keep their copy of one for all callers.
#include <immintrin.h>

#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/transpose_words.h"

namespace weft::panels {
namespace {

__mmask32 LowMask32(int64_t count) { return count >= 32 ? 0xFFFFFFFFU : (1U << count) - 1U; }

// Loads a tile's words as [line][pair].
void LoadLines(Source source, int64_t lines, int64_t depth, __m512i (&words)[16]) {
  const __mmask32 mask = LowMask32(depth);
  for (int64_t line = 0; line < 16; ++line) {
    words[line] = line < lines ? _mm512_maskz_loadu_epi16(mask, source.data + line * source.leading)
                               : _mm512_setzero_si512();
  }
}

// Loads the words of two tiles of neighboring lines, as [pair][line].
void LoadPairs(Source source, int64_t lines, int64_t depth, __m512i (&low)[16], __m512i (&high)[16]) {
  const __mmask32 mask = LowMask32(lines);
  const auto load = [&](int64_t k) {
    return k < depth ? _mm512_maskz_loadu_epi16(mask, source.data + k * source.leading)
                     : _mm512_setzero_si512();
  };
  // The unpacked words of lines 0-3, 8-11, 16-19, 24-27 and of the others, put in order.
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int64_t pair = 0; pair < 16; ++pair) {
    const __m512i even = load(2 * pair);
    const __m512i odd = load(2 * pair + 1);
    const __m512i some = _mm512_unpacklo_epi16(even, odd);
    const __m512i others = _mm512_unpackhi_epi16(even, odd);
    low[pair] = _mm512_permutex2var_epi32(some, first, others);
    high[pair] = _mm512_permutex2var_epi32(some, second, others);
  }
}

void StoreTile(const __m512i (&words)[16], uint32_t* tile) {
  for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * kTile, words[i]);
}

void PackBlockOfLines(Operand operand, Source source, int64_t lines, int64_t depth, uint32_t* block) {
  for (int64_t first = 0; first < kPanel; first += kTile) {
    __m512i words[16];
    LoadLines({source.data + first * source.leading, source.leading, false}, lines - first, depth, words);
    if (operand == Operand::kB) Transpose(words);
    StoreTile(words, block + first / kTile * kTileWords);
  }
}

void PackBlockOfPairs(Operand operand, Source source, int64_t lines, int64_t depth, uint32_t* block) {
  __m512i low[16];
  __m512i high[16];
  LoadPairs(source, lines, depth, low, high);
  if (operand == Operand::kA) {
    Transpose(low);
    Transpose(high);
  }
  StoreTile(low, block);
  StoreTile(high, block + kTileWords);
}

// 16 values of bf16, rounded to nearest even as ToBF16 does.
__m256i ToBf16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
}

// Calls store(place, values) for each run of 16 values of the first `rows` of a product of panels.
template <typename T, typename Store>
void StoreRows(const float* sums, int64_t rows, T* target, int64_t leading, const Store& store) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* left = sums + row / kTile * 2 * kTileWords + row % kTile * kTile;
    store(target + row * leading, _mm512_loadu_ps(left));
    store(target + row * leading + kTile, _mm512_loadu_ps(left + kTileWords));
  }
}

}  // namespace

void PackPanelBlock(Operand operand, Source source, int64_t lines, int64_t depth, uint32_t* block) {
  source.strided ? PackBlockOfPairs(operand, source, lines, depth, block)
                 : PackBlockOfLines(operand, source, lines, depth, block);
}

void StoreBf16Rows(const float* sums, int64_t rows, uint16_t* target, int64_t leading) {
  StoreRows(sums, rows, target, leading, [](uint16_t* place, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), ToBf16(values));
  });
}

void StoreFloatRows(const float* sums, int64_t rows, float* target, int64_t leading) {
  StoreRows(sums, rows, target, leading,
            [](float* place, __m512 values) { _mm512_storeu_ps(place, values); });
}

void StreamFloatRows(const float* sums, int64_t rows, float* target, int64_t leading) {
  StoreRows(sums, rows, target, leading,
            [](float* place, __m512 values) { _mm512_stream_ps(place, values); });
}

void EndStreams() { _mm_sfence(); }

}  // namespace weft::panels
