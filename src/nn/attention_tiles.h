// The plan of an attention: which tiles of its score matrix are computed, and what each row of a tile sees.
// Pure, and the same for every head and every row of a batch.
//
// Note [Attention by tiles]
// Queries are taken in blocks of rows, keys in tiles of columns, so that a tile of scores stays in a core's
// cache. Each tile is one matrix product Q K^T, then a pass over its rows, then one product (forward) or
// three and one more before (backward), so nearly all of the time is spent in the matrix library. Tiles in
// which nothing is visible are left out; others are trimmed to what is visible, by multiples of some lanes,
// as the matrix library prepares code for every shape that it meets.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/nn/attention_mask.h"

namespace weft {

struct TileSize {
  int64_t rows, columns;
};
TileSize ChooseTileSize(int64_t queries);

// Columns [begin, end) of a tile.
struct ColumnSpan {
  int64_t begin, end;
};

// Keys [first, first + count) of a block of keys.
struct KeyTile {
  int64_t block;
  int64_t first, count;
};

struct AttentionTile {
  int64_t row_block;  // Queries [row_block * size.rows, …), of which the tile has [first_row, + rows).
  int64_t key_tile;   // Of the plan's key tiles, of which the tile has keys [first_key, + columns).
  int64_t first_row, rows;
  int64_t first_key, columns;  // First key within the block.
  int64_t spans_at;            // Of its first row, in the plan; -1 if every row sees all columns.
  ColumnSpan all;
};

class AttentionPlan {
 public:
  enum class Order : uint8_t { kByRowBlock, kByKeyTile };

  AttentionPlan(const AttentionMask& mask, const TokenRuns& queries,
                absl::Span<const TokenRuns* const> key_blocks, TileSize size, Order order);

  int64_t row_blocks() const { return row_blocks_; }
  const std::vector<KeyTile>& key_tiles() const { return key_tiles_; }
  // Those of a row block from left to right, or those of a key tile from top to bottom.
  absl::Span<const AttentionTile> TilesOf(int64_t group) const;
  // What a row of the tile sees, from left to right.
  absl::Span<const ColumnSpan> SeenBy(const AttentionTile& tile, int64_t row) const;

 private:
  class Builder;

  int64_t row_blocks_;
  std::vector<KeyTile> key_tiles_;
  std::vector<AttentionTile> tiles_;
  std::vector<int64_t> group_starts_;  // In tiles_; then their number.
  std::vector<int64_t>
      span_starts_;  // In spans_, for the rows of tiles; a row's end is the next one's start.
  std::vector<ColumnSpan> spans_;
};

}  // namespace weft
