// Tiles of a plan as strips of panels: their alignment, and the visible keys of a strip as bits for the
// passes of score_strips.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/nn/attention/attention_plan.h"
#include "src/nn/attention/packed_heads.h"
#include "weft/core/status.h"

namespace weft {

static_assert(kTileAlignment % panels::kPanel == 0);
// Panels of queries and keys serve whole tiles only if these start at panels.
inline void CheckAlignment(const AttentionTile& tile) {
  WEFT_CHECK(tile.first_row % panels::kPanel == 0 && tile.first_key % panels::kPanel == 0,
             "a tile of attention starts within a panel");
}

// Sets the bits [begin, end) of 16-bit words.
inline void SetBits(uint16_t* words, int64_t begin, int64_t end) {
  for (int64_t word = begin / 16; word * 16 < end; ++word) {
    const int64_t first = std::max<int64_t>(begin - word * 16, 0);
    const int64_t last = std::min<int64_t>(end - word * 16, 16);
    words[word] |= static_cast<uint16_t>((1U << last) - (1U << first));
  }
}

// The bits of the strip whose first query is row `row` of the tile: [32 queries][2 per panel of keys], in
// `memory`. Null if the strip is full and all pairs are visible. Queries and keys beyond the tile are hidden.
inline const uint16_t* VisibleBits(const AttentionPlan& plan, const AttentionTile& tile, int64_t row,
                                   std::vector<uint16_t>& memory) {
  const bool is_full = row + panels::kPanel <= tile.rows && tile.columns % panels::kPanel == 0;
  if (is_full && tile.span_row < 0) return nullptr;
  const int64_t words = 2 * PanelsOf(tile.columns);
  memory.assign(static_cast<size_t>(panels::kPanel * words), 0);
  for (int64_t i = 0; i < std::min(panels::kPanel, tile.rows - row); ++i) {
    for (const ColumnSpan& span : plan.VisibleColumns(tile, row + i))
      SetBits(memory.data() + i * words, span.begin, span.end);
  }
  return memory.data();
}

}  // namespace weft
