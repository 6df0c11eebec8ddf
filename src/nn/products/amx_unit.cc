// Products of panels on AMX tiles. This file alone is compiled for AMX.
#include <cpuid.h>
#include <immintrin.h>
#include <unistd.h>

#include <sys/syscall.h>

#include "src/nn/products/panel_kernels.h"

namespace weft::panels {
namespace {

// Bits of CPUID leaf 7, subleaf 0, in EDX.
constexpr unsigned kAmxBf16 = 1U << 22;
constexpr unsigned kAmxTile = 1U << 24;

// arch_prctl's request for the state of tiles, which Linux gives to a process on demand.
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

bool HasInstructions() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile;
  return (edx & kNeeded) == kNeeded;
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

void Begin() { _tile_loadconfig(&tile_config); }
void End() { _tile_release(); }

void Multiply(const uint32_t* a, const uint32_t* b, int64_t blocks, bool continues, float* sums) {
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

constexpr PanelUnit kUnit = {Begin, End, Multiply};

}  // namespace

const PanelUnit* AmxUnit() {
  // Callers of a unit pack operands by AVX-512, which every CPU with AMX has.
  static const bool available = Avx512Bf16Unit() != nullptr && HasInstructions() &&
                                syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return available ? &kUnit : nullptr;
}

}  // namespace weft::panels
