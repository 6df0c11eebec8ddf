// Kernels of bf16 matrix products for CPUs with AVX512-BF16 or AMX: packing of operands into tiles, and the
// product of packed panels. Their sources alone are compiled for these instructions. Callers ask for a
// PanelUnit first: without one, nothing here may be called.
//
// A *tile* is 16 x 16 words of 32 bits, 1 KiB. A word has two bf16 values that are neighbors along k. A *k
// block* is 32 values along k, the depth of one tile. A *panel* is 32 rows of A, or 32 columns of B, over
// some k blocks: two tiles for each k block, one after the other. Missing rows, columns and values are zero.
//   tile of A: word [row][pair]      tile of B: word [pair][column]
// The *product* of two panels, 32 x 32 floats, has four dense 16 x 16 quadrants: top left, top right, bottom
// left, bottom right.
// Source: Intel, "Intel 64 and IA-32 Architectures Optimization Reference Manual", chapter on AMX.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

namespace weft::panels {

inline constexpr int64_t kTile = 16;
inline constexpr int64_t kPanel = 2 * kTile;  // Rows of A, or columns of B, of a panel.
inline constexpr int64_t kBlock = 32;         // Values along k of a k block.
inline constexpr int64_t kTileWords = kTile * kTile;
inline constexpr int64_t kBlockWords = 2 * kTileWords;      // Words of one k block of a panel.
inline constexpr int64_t kProductFloats = kPanel * kPanel;  // Floats of the product of two panels.

// The instructions that multiply panels.
struct PanelUnit {
  // Configures the calling thread, and undoes that.
  void (*begin)();
  void (*end)();
  // sums = (continues ? sums : 0) + A B for panels of `blocks` k blocks, in fp32. Sums run k block by k
  // block, so the division of a product into calls changes no bit. The order within a block depends on the
  // unit. REQUIRES: between begin and end of the calling thread.
  void (*multiply)(const uint32_t* a, const uint32_t* b, int64_t blocks, bool continues, float* sums);
};

// The unit, or null if the CPU, the system or the compiler has none.
const PanelUnit* AmxUnit();
const PanelUnit* Avx512Bf16Unit();
// AMX, or else AVX512-BF16, or else null.
inline const PanelUnit* FastestPanelUnit() { return AmxUnit() != nullptr ? AmxUnit() : Avx512Bf16Unit(); }

// The use of a unit by the calling thread.
class PanelScope {
 public:
  explicit PanelScope(const PanelUnit& unit) : unit_(unit) { unit_.begin(); }
  ~PanelScope() { unit_.end(); }
  PanelScope(const PanelScope&) = delete;
  PanelScope& operator=(const PanelScope&) = delete;

 private:
  const PanelUnit& unit_;
};

enum class Operand : uint8_t { kA, kB };
// An operand in memory, from its first line (row of A, or column of B) and its first value along k.
struct Source {
  const uint16_t* data;
  int64_t leading;  // Elements between two lines, or between two values along k if `strided`.
  bool strided;     // False: the values of a line are neighbors. True: the lines are.
};
// Packs one k block of a panel: the first 32 of `lines` lines, and the first 32 of `depth` values along k.
// Missing ones become 0.
void PackPanelBlock(Operand operand, Source source, int64_t lines, int64_t depth, uint32_t* block);

// Store the first `rows` of a product of panels, 32 columns wide, as floats or rounded to bf16.
void StoreFloatRows(const float* sums, int64_t rows, float* target, int64_t leading);
void StoreBf16Rows(const float* sums, int64_t rows, uint16_t* target, int64_t leading);
// The same past the caches, which need not read a line before it is overwritten. Other threads may read the
// results after EndStreams() of the calling thread.
// REQUIRES: all rows of `target` are aligned to 64 bytes.
void StreamFloatRows(const float* sums, int64_t rows, float* target, int64_t leading);
void EndStreams();

}  // namespace weft::panels
