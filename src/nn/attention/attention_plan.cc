#include "src/nn/attention/attention_plan.h"

#include <algorithm>
#include <bit>

#include "src/nn/attention/attention_plan_builder.h"

namespace weft {
namespace {

// State of the sums of all tokens (rows or keys) while the tiles are visited in order. A tile initializes the
// sums of its tokens if no earlier tile has any of them.
class TouchedTokens {
 public:
  explicit TouchedTokens(int64_t tokens) : state_(static_cast<size_t>(tokens), State::kUntouched) {}

  // Visits a tile with tokens [first, first + count). Returns true if all of them were untouched: the tile
  // then initializes their sums. If only some were untouched, no tile initializes the sums of those.
  bool Touch(int64_t first, int64_t count) {
    const auto begin = state_.begin() + first;
    const bool untouched = std::all_of(begin, begin + count, [](State s) { return s == State::kUntouched; });
    for (auto state = begin; state != begin + count; ++state) {
      if (*state == State::kUntouched) *state = untouched ? State::kInitialized : State::kNotInitialized;
    }
    return untouched;
  }
  bool AllInitialized(int64_t first, int64_t count) const {
    const auto begin = state_.begin() + first;
    return std::all_of(begin, begin + count, [](State s) { return s == State::kInitialized; });
  }

 private:
  enum class State : uint8_t { kUntouched, kInitialized, kNotInitialized };
  std::vector<State> state_;
};

}  // namespace

TileSize TileSizeFor(int64_t cache_bytes) {
  constexpr int64_t kMaxRows = 256;
  constexpr int64_t kMaxColumns = 512;
  constexpr int64_t kMinColumns = 128;
  static_assert(kMaxRows % kTileAlignment == 0 && kMinColumns % kTileAlignment == 0);
  const auto scores = static_cast<uint64_t>(cache_bytes / 2) / sizeof(float);
  const auto columns = static_cast<int64_t>(std::bit_floor(scores / kMaxRows));
  return {kMaxRows, std::clamp(columns, kMinColumns, kMaxColumns)};
}

AttentionPlan::AttentionPlan(const AttentionMask& mask, const TokenRuns& queries,
                             absl::Span<const TokenRuns* const> key_blocks, TileSize size, Order order,
                             const RowPairs& pairs)
    : size_(size), queries_(TokenCount(queries)), row_blocks_((queries_ + size.rows - 1) / size.rows) {
  std::vector<TokenRuns> keys_of_tile;
  for (size_t block = 0; block < key_blocks.size(); ++block) {
    const int64_t keys = TokenCount(*key_blocks[block]);
    for (int64_t first = 0; first < keys; first += size.columns) {
      const int64_t count = std::min(size.columns, keys - first);
      key_tiles_.push_back({static_cast<int64_t>(block), first, count});
      keys_of_tile.push_back(SliceRuns(*key_blocks[block], first, count));
    }
  }
  Builder builder(*this, mask, pairs);
  for (int64_t row_block = 0; row_block < row_blocks_; ++row_block) {
    const TokenRuns queries_of_block = SliceRuns(queries, FirstRow(row_block), RowsOf(row_block));
    for (size_t i = 0; i < key_tiles_.size(); ++i) {
      AttentionTile tile = {};
      tile.row_block = row_block;
      tile.key_tile = static_cast<int64_t>(i);
      tile.first_row = FirstRow(row_block);
      tile.rows = RowsOf(row_block);
      tile.first_key = key_tiles_[i].first;
      tile.columns = key_tiles_[i].count;
      tile.all = {0, tile.columns};
      builder.Add(tile, queries_of_block, keys_of_tile[i]);
    }
  }
  GroupTiles(order);
  MarkInitializingTiles();
}

void AttentionPlan::GroupTiles(Order order) {
  const auto group_of = [order](const AttentionTile& tile) {
    return order == Order::kByRowBlock ? tile.row_block : tile.key_tile;
  };
  if (order == Order::kByKeyTile) std::reverse(tiles_.begin(), tiles_.end());
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [&](const AttentionTile& a, const AttentionTile& b) { return group_of(a) < group_of(b); });
  const int64_t groups = order == Order::kByRowBlock ? row_blocks_ : static_cast<int64_t>(key_tiles_.size());
  auto tile = tiles_.begin();
  for (int64_t group = 0; group <= groups; ++group) {
    tile = std::find_if(tile, tiles_.end(), [&](const AttentionTile& t) { return group_of(t) >= group; });
    group_starts_.push_back(tile - tiles_.begin());
  }
}

void AttentionPlan::MarkInitializingTiles() {
  std::vector<int64_t> first_of_block;  // Index of the block's first key, counted over all blocks.
  int64_t keys = 0;
  for (const KeyTile& tile : key_tiles_) {
    if (tile.first == 0) first_of_block.resize(static_cast<size_t>(tile.block) + 1, keys);
    keys += tile.count;
  }
  const auto key_at = [&](int64_t block, int64_t key) {
    return first_of_block[static_cast<size_t>(block)] + key;
  };
  TouchedTokens rows(queries_);
  TouchedTokens columns(keys);
  for (AttentionTile& tile : tiles_) {
    tile.initializes_rows = rows.Touch(tile.first_row, tile.rows);
    tile.initializes_keys = columns.Touch(key_at(BlockOf(tile), tile.first_key), tile.columns);
  }
  for (int64_t block = 0; block < row_blocks_; ++block) {
    initializes_rows_.push_back(rows.AllInitialized(FirstRow(block), RowsOf(block)));
  }
  for (const KeyTile& tile : key_tiles_) {
    initializes_keys_.push_back(columns.AllInitialized(key_at(tile.block, tile.first), tile.count));
  }
  for (AttentionTile& tile : tiles_) {
    tile.initializes_rows &= InitializesRows(tile.row_block);
    tile.initializes_keys &= InitializesKeys(tile.key_tile);
  }
}

int64_t AttentionPlan::MaxTileKeys() const {
  int64_t most = 0;
  for (const KeyTile& tile : key_tiles_) most = std::max(most, tile.count);
  return most;
}

absl::Span<const AttentionTile> AttentionPlan::TilesOf(int64_t group) const {
  const auto begin = static_cast<size_t>(group_starts_[static_cast<size_t>(group)]);
  const auto end = static_cast<size_t>(group_starts_[static_cast<size_t>(group) + 1]);
  return absl::MakeConstSpan(tiles_).subspan(begin, end - begin);
}

BatchPlans::BatchPlans(const AttentionMask& mask, const PairMask* pair_mask, int64_t batch,
                       const TokenRuns& queries, absl::Span<const TokenRuns* const> key_blocks, TileSize size,
                       AttentionPlan::Order order) {
  if (pair_mask == nullptr || batch == 0) {
    plans_.emplace_back(mask, queries, key_blocks, size, order);
    return;
  }
  plans_.reserve(static_cast<size_t>(batch));
  for (int64_t row = 0; row < batch; ++row) {
    plans_.emplace_back(mask, queries, key_blocks, size, order, RowPairs{pair_mask, row});
  }
}

}  // namespace weft
