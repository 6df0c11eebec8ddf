// Plan of an attention: the tiles of the score matrix [queries, keys] that are computed, and the visible
// columns of each row of a tile. Pure. All heads share one plan, and so do all rows of a batch without a
// PairMask.
//
// Note [Attention tiles]
// Queries are divided into row blocks and keys into key tiles, so that one tile of scores fits into a core's
// cache. A tile takes one matrix product Q K^T, a pass over its rows, and one more product in forward, or
// four in backward. Nearly all of the time is therefore spent in these products. Tiles without a visible pair
// are skipped. Note [Partial tiles] describes those in which only some pairs are visible. Tiles start and end
// at multiples of kTileAlignment queries and keys, except at the end of all queries and of a key block:
// Note [Attention on panels] needs that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/nn/attention_mask.h"

namespace weft {

inline constexpr int64_t kTileAlignment = 32;

struct TileSize {
  int64_t rows, columns;
};
// The tile size whose scores, in f32, fill at most half of a cache of `cache_bytes`. For small caches it is
// the smallest tile whose products are still efficient.
TileSize TileSizeFor(int64_t cache_bytes);

// Columns [begin, end) of a tile or of a key tile.
struct ColumnSpan {
  int64_t begin, end;
};

// The keys of a run that a query at `position` of the same document attends to, as indices into the run.
// Empty if begin >= end.
ColumnSpan VisibleKeysOfRun(const AttentionMask& mask, int64_t position, const TokenRun& keys);

// Keys [first, first + count) of a block of keys.
struct KeyTile {
  int64_t block;
  int64_t first, count;
};

// A rectangle of the score matrix that is computed at once: all or part of one row block and one key tile.
struct AttentionTile {
  int64_t row_block;           // Index of the row block that contains the tile.
  int64_t key_tile;            // Index of the key tile that contains the tile.
  int64_t first_row, rows;     // Counted over all queries.
  int64_t first_key, columns;  // Counted over the keys of the key block.
  int64_t span_row = -1;  // Index of the tile's first row in the plan's spans; -1 if all pairs are visible.
  ColumnSpan all;         // [0, columns)
  // True if the tile initializes the sums of its rows (keys): no earlier tile has any of them, and its
  // product overwrites them, or scales them by the caller's beta. Products of later tiles add to them. False
  // for all tiles of a row block (key tile) for which InitializesRows (InitializesKeys) is false.
  bool initializes_rows = false;
  bool initializes_keys = false;
};

// The pairs of one row of the batch that a PairMask leaves visible.
struct RowPairs {
  const PairMask* mask = nullptr;  // Null: all pairs.
  int64_t row = 0;

  bool AllVisible() const { return mask == nullptr; }
  // REQUIRES: not AllVisible.
  bool IsVisible(int64_t query, int64_t key) const { return (*mask)(row, query, key); }
};

class AttentionPlan {
 public:
  // Order of the tiles, and their groups.
  //   kByRowBlock: one group per row block, tiles from the first key to the last.
  //   kByKeyTile: one group per key tile, tiles from the last query to the first. With a causal mask the
  //     first tile then has all columns, and can initialize the sums of all keys.
  enum class Order : uint8_t { kByRowBlock, kByKeyTile };

  // `queries` are the tokens of the queries, `key_blocks` those of each block of keys.
  AttentionPlan(const AttentionMask& mask, const TokenRuns& queries,
                absl::Span<const TokenRuns* const> key_blocks, TileSize size, Order order,
                const RowPairs& pairs = {});

  int64_t row_blocks() const { return row_blocks_; }
  int64_t FirstRow(int64_t row_block) const { return row_block * size_.rows; }
  int64_t RowsOf(int64_t row_block) const { return std::min(size_.rows, queries_ - FirstRow(row_block)); }
  const std::vector<KeyTile>& key_tiles() const { return key_tiles_; }
  // The number of keys of the largest key tile.
  int64_t MaxTileKeys() const;
  int64_t BlockOf(const AttentionTile& tile) const {
    return key_tiles_[static_cast<size_t>(tile.key_tile)].block;
  }

  // The tiles of one group: of a row block or of a key tile, depending on the plan's order.
  absl::Span<const AttentionTile> TilesOf(int64_t group) const;
  // The visible columns of a row of the tile, as disjoint spans in ascending order.
  absl::Span<const ColumnSpan> VisibleColumns(const AttentionTile& tile, int64_t row) const {
    if (tile.span_row < 0) return {&tile.all, 1};
    const auto at = static_cast<size_t>(tile.span_row + row);
    return {spans_.data() + span_starts_[at], static_cast<size_t>(span_starts_[at + 1] - span_starts_[at])};
  }
  // True if every row (key) of the row block (key tile) has a tile that initializes its sums. If not, no tile
  // does, and the caller must initialize all sums of the row block (key tile) before its first tile.
  bool InitializesRows(int64_t row_block) const { return initializes_rows_[static_cast<size_t>(row_block)]; }
  bool InitializesKeys(int64_t key_tile) const { return initializes_keys_[static_cast<size_t>(key_tile)]; }

 private:
  class Builder;

  void GroupTiles(Order order);
  void MarkInitializingTiles();

  TileSize size_;
  int64_t queries_;
  int64_t row_blocks_;
  std::vector<KeyTile> key_tiles_;
  std::vector<AttentionTile> tiles_;
  // The tiles of group g are tiles_[group_starts_[g]] up to tiles_[group_starts_[g + 1]].
  std::vector<int64_t> group_starts_;
  // The spans of row r are spans_[span_starts_[r]] up to spans_[span_starts_[r + 1]].
  std::vector<int64_t> span_starts_;
  std::vector<ColumnSpan> spans_;
  std::vector<bool> initializes_rows_, initializes_keys_;  // By row block; by key tile.
};

// The plans of a batch: one for all rows or, with a PairMask, one for each row.
class BatchPlans {
 public:
  BatchPlans(const AttentionMask& mask, const PairMask* pair_mask, int64_t batch, const TokenRuns& queries,
             absl::Span<const TokenRuns* const> key_blocks, TileSize size, AttentionPlan::Order order);

  const AttentionPlan& Of(int64_t row) const {
    return plans_[plans_.size() == 1 ? 0 : static_cast<size_t>(row)];
  }
  // Row blocks and key tiles are those of every row. Tiles are those of row 0.
  const AttentionPlan& first() const { return plans_.front(); }

 private:
  std::vector<AttentionPlan> plans_;
};

}  // namespace weft
