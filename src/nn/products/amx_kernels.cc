#include "src/nn/products/amx_kernels.h"

#include <cpuid.h>
#include <immintrin.h>
#include <unistd.h>

#include <sys/syscall.h>

namespace weft::amx {
namespace {

// Bits of CPUID leaf 7, subleaf 0.
constexpr unsigned kAvx512F = 1U << 16;   // EBX
constexpr unsigned kAvx512Bw = 1U << 30;  // EBX
constexpr unsigned kAvx512Vl = 1U << 31;  // EBX
constexpr unsigned kAmxBf16 = 1U << 22;   // EDX
constexpr unsigned kAmxTile = 1U << 24;   // EDX

// arch_prctl's request for the state of tiles, which Linux gives to a process on demand.
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

bool HasInstructions() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kEbx = kAvx512F | kAvx512Bw | kAvx512Vl;
  constexpr unsigned kEdx = kAmxBf16 | kAmxTile;
  return (ebx & kEbx) == kEbx && (edx & kEdx) == kEdx;
}

__mmask32 LowMask32(int64_t count) { return count >= 32 ? 0xFFFFFFFFU : (1U << count) - 1U; }

// Transposes 16 x 16 words.
void Transpose(__m512i (&rows)[16]) {
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

// Loads a tile's words as [line][pair].
void LoadLines(Source source, int64_t lines, int64_t depth, __m512i (&words)[16]) {
  const __mmask32 mask = LowMask32(depth);
  for (int64_t line = 0; line < 16; ++line) {
    words[line] = line < lines ? _mm512_maskz_loadu_epi16(mask, source.data + line * source.leading)
                               : _mm512_setzero_si512();
  }
}

// Loads the words of two tiles of neighbouring lines, as [pair][line].
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

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A global: GCC's intrinsic tells the compiler of the first 8 bytes only, so it may drop stores to a local
// one.
const TileConfig tile_config;

constexpr int64_t kRowBytes = kTile * int64_t{sizeof(uint32_t)};

}  // namespace

bool IsAvailable() {
  static const bool available =
      HasInstructions() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return available;
}

void PackPanelBlock(Operand operand, Source source, int64_t lines, int64_t depth, uint32_t* block) {
  source.strided ? PackBlockOfPairs(operand, source, lines, depth, block)
                 : PackBlockOfLines(operand, source, lines, depth, block);
}

void StoreBf16Rows(const float* sums, int64_t rows, uint16_t* target, int64_t leading) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* left = sums + row / kTile * 2 * kTileWords + row % kTile * kTile;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + row * leading), ToBf16(_mm512_loadu_ps(left)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + row * leading + kTile),
                        ToBf16(_mm512_loadu_ps(left + kTileWords)));
  }
}

TileScope::TileScope() { _tile_loadconfig(&tile_config); }
TileScope::~TileScope() { _tile_release(); }

void MultiplyPanels(const uint32_t* a, const uint32_t* b, int64_t blocks, bool continues, float* sums) {
  if (continues) {
    _tile_loadd(0, sums, kRowBytes);
    _tile_loadd(1, sums + kTileWords, kRowBytes);
    _tile_loadd(2, sums + 2 * kTileWords, kRowBytes);
    _tile_loadd(3, sums + 3 * kTileWords, kRowBytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t block = 0; block < blocks; ++block) {
    _tile_loadd(4, a, kRowBytes);
    _tile_loadd(6, b, kRowBytes);
    _tile_loadd(7, b + kTileWords, kRowBytes);
    _tile_loadd(5, a + kTileWords, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += kBlockWords;
    b += kBlockWords;
  }
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kTileWords, kRowBytes);
  _tile_stored(2, sums + 2 * kTileWords, kRowBytes);
  _tile_stored(3, sums + 3 * kTileWords, kRowBytes);
}

}  // namespace weft::amx
