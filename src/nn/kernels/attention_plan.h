// The plan of an attention: which tiles of its score matrix are computed, and what each row of a tile sees.
// Pure, and the same for every head and every row of a batch.
//
// Note [Attention by tiles]
// Queries are taken in blocks of rows, keys in tiles of columns, so that a tile of scores stays in a core's
// cache. Each tile is one matrix product Q K^T, then a pass over its rows, then one product more (forward) or
// four (backward), so nearly all of the time is spent in the matrix library. Tiles in which nothing is
// visible are left out; see Note [Parts of tiles] for those of which a part is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/nn/attention_mask.h"

namespace weft {

struct TileSize {
  int64_t rows, columns;
};
// Whose scores, in f32, take at most half of the cache, where that leaves products of a size that is worth a
// call.
TileSize TileSizeFor(int64_t cache_bytes);

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
  int64_t row_block;  // The block of queries, and the tile of keys, that it is a part of.
  int64_t key_tile;
  int64_t first_row, rows;     // Of all queries.
  int64_t first_key, columns;  // Of the block of keys.
  int64_t spans_at = -1;       // In the plan, of its first row; -1 if every row sees all columns.
  ColumnSpan all;              // [0, columns)
  // No tile before had any of its rows (columns), and what its row block (key tile) sums needs no setting up.
  bool begins_rows = false;
  bool begins_keys = false;
};

class AttentionPlan {
 public:
  // Row block by row block, from left to right; or key tile by key tile, from bottom to top, so that the
  // first tile of a causal mask has all columns.
  enum class Order : uint8_t { kByRowBlock, kByKeyTile };

  // `key_blocks`: the tokens of each block of keys.
  AttentionPlan(const AttentionMask& mask, const TokenRuns& queries,
                absl::Span<const TokenRuns* const> key_blocks, TileSize size, Order order);

  int64_t row_blocks() const { return row_blocks_; }
  int64_t FirstRow(int64_t row_block) const { return row_block * size_.rows; }
  int64_t RowsOf(int64_t row_block) const { return std::min(size_.rows, queries_ - FirstRow(row_block)); }
  const std::vector<KeyTile>& key_tiles() const { return key_tiles_; }
  // Of a key tile.
  int64_t MostKeys() const;
  int64_t BlockOf(const AttentionTile& tile) const {
    return key_tiles_[static_cast<size_t>(tile.key_tile)].block;
  }

  // Those of a row block or of a key tile, by the plan's order.
  absl::Span<const AttentionTile> TilesOf(int64_t group) const;
  // What a row of the tile sees, from left to right.
  absl::Span<const ColumnSpan> SeenBy(const AttentionTile& tile, int64_t row) const {
    if (tile.spans_at < 0) return {&tile.all, 1};
    const auto at = static_cast<size_t>(tile.spans_at + row);
    return {spans_.data() + span_starts_[at], static_cast<size_t>(span_starts_[at + 1] - span_starts_[at])};
  }
  // Whether each row (key) has a tile that begins it: else what is summed over tiles must be set up before.
  bool RowsBegin(int64_t row_block) const { return rows_begin_[static_cast<size_t>(row_block)]; }
  bool KeysBegin(int64_t key_tile) const { return keys_begin_[static_cast<size_t>(key_tile)]; }

 private:
  class Builder;

  void GroupTiles(Order order);
  void MarkBeginnings();

  TileSize size_;
  int64_t queries_;
  int64_t row_blocks_;
  std::vector<KeyTile> key_tiles_;
  std::vector<AttentionTile> tiles_;
  std::vector<int64_t> group_starts_;  // In tiles_; then their number.
  // In spans_, by row of tiles; a row's spans end where the next row's begin.
  std::vector<int64_t> span_starts_;
  std::vector<ColumnSpan> spans_;
  std::vector<bool> rows_begin_, keys_begin_;
};

}  // namespace weft
