// Products of panels on AMX tiles. This file alone is compiled for AMX.
#include <immintrin.h>

#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/panel_units.h"

namespace weft::panels {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A global: GCC's intrinsic tells the compiler of the first 8 bytes only, so it may drop stores to a local
// one.
const TileConfig kTileConfig;

constexpr int64_t kRowBytes = kTile * int64_t{sizeof(uint32_t)};

void Begin() { _tile_loadconfig(&kTileConfig); }
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

}  // namespace

const PanelUnit kAmxUnit = {Begin, End, Multiply};

}  // namespace weft::panels
