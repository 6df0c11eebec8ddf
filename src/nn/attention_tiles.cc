#include "src/nn/attention_tiles.h"

#include <algorithm>

namespace weft {
namespace {

// Tiles are trimmed by multiples of this.
constexpr int64_t kTrim = 64;

// Tokens [first, first + count) of the runs.
TokenRuns Cut(const TokenRuns& runs, int64_t first, int64_t count) {
  TokenRuns cut;
  int64_t start = 0;
  for (const TokenRun& run : runs) {
    const int64_t begin = std::max(start, first);
    const int64_t end = std::min(start + run.count, first + count);
    if (begin < end) cut.push_back({run.document, run.position + begin - start, end - begin});
    start += run.count;
  }
  return cut;
}

// The keys of a run that a query sees, as indices into the run.
ColumnSpan SeenOfRun(const AttentionMask& mask, int64_t position, const TokenRun& keys) {
  if (!mask.causal) return {0, keys.count};
  const int64_t newest = position - keys.position;
  const int64_t oldest = mask.window.has_value() ? newest - *mask.window : 0;
  return {std::max<int64_t>(oldest, 0), std::min(newest + 1, keys.count)};
}

}  // namespace

TileSize ChooseTileSize(int64_t queries) { return queries <= 512 ? TileSize{128, 512} : TileSize{256, 512}; }

// Adds tiles to a plan, row block by row block.
class AttentionPlan::Builder {
 public:
  Builder(AttentionPlan& plan, const AttentionMask& mask) : plan_(plan), mask_(mask) {}

  // The tile of a row block with a key tile, whose tokens are `queries` and `keys`: none if nothing is
  // visible in it.
  void Add(AttentionTile tile, const TokenRuns& queries, const TokenRuns& keys) {
    const int64_t pairs = VisiblePairs(queries, keys);
    if (pairs == 0) return;
    tile.spans_at = -1;
    if (pairs < tile.rows * tile.columns) AddSpans(tile, queries, keys);
    tile.all = {0, tile.columns};
    plan_.tiles_.push_back(tile);
  }

 private:
  int64_t VisiblePairs(const TokenRuns& queries, const TokenRuns& keys) const {
    int64_t pairs = 0;
    for (const TokenRun& query_run : queries) {
      for (const TokenRun& key_run : keys) pairs += weft::VisiblePairs(mask_, query_run, key_run);
    }
    return pairs;
  }

  void AddSpans(AttentionTile& tile, const TokenRuns& queries, const TokenRuns& keys) {
    rows_.clear();
    for (const TokenRun& run : queries) {
      for (int64_t i = 0; i < run.count; ++i)
        rows_.push_back(SeenOfRuns(run.document, run.position + i, keys));
    }
    Trim(tile);
    tile.spans_at = static_cast<int64_t>(plan_.span_starts_.size());
    for (const std::vector<ColumnSpan>& row : rows_) {
      plan_.span_starts_.push_back(static_cast<int64_t>(plan_.spans_.size()));
      plan_.spans_.insert(plan_.spans_.end(), row.begin(), row.end());
    }
    plan_.span_starts_.push_back(static_cast<int64_t>(plan_.spans_.size()));
  }

  std::vector<ColumnSpan> SeenOfRuns(int64_t document, int64_t position, const TokenRuns& keys) const {
    std::vector<ColumnSpan> seen;
    int64_t start = 0;
    for (const TokenRun& run : keys) {
      const ColumnSpan span = SeenOfRun(mask_, position, run);
      if (run.document == document && span.begin < span.end) {
        if (!seen.empty() && seen.back().end == start + span.begin) {
          seen.back().end = start + span.end;
        } else {
          seen.push_back({start + span.begin, start + span.end});
        }
      }
      start += run.count;
    }
    return seen;
  }

  // Drops rows and columns at the tile's borders in which nothing is visible.
  void Trim(AttentionTile& tile) {
    ColumnSpan rows = {tile.rows, 0};
    ColumnSpan columns = {tile.columns, 0};
    for (int64_t row = 0; row < tile.rows; ++row) {
      const std::vector<ColumnSpan>& seen = rows_[static_cast<size_t>(row)];
      if (seen.empty()) continue;
      rows = {std::min(rows.begin, row), row + 1};
      columns = {std::min(columns.begin, seen.front().begin), std::max(columns.end, seen.back().end)};
    }
    rows = Widened(rows, tile.rows);
    columns = Widened(columns, tile.columns);
    rows_ = {rows_.begin() + rows.begin, rows_.begin() + rows.end};
    for (std::vector<ColumnSpan>& row : rows_) {
      for (ColumnSpan& span : row) span = {span.begin - columns.begin, span.end - columns.begin};
    }
    tile.first_row += rows.begin;
    tile.rows = rows.end - rows.begin;
    tile.first_key += columns.begin;
    tile.columns = columns.end - columns.begin;
  }

  static ColumnSpan Widened(ColumnSpan span, int64_t count) {
    return {span.begin / kTrim * kTrim, std::min((span.end + kTrim - 1) / kTrim * kTrim, count)};
  }

  AttentionPlan& plan_;
  const AttentionMask& mask_;
  std::vector<std::vector<ColumnSpan>> rows_;  // Of the tile being added.
};

AttentionPlan::AttentionPlan(const AttentionMask& mask, const TokenRuns& queries,
                             absl::Span<const TokenRuns* const> key_blocks, TileSize size, Order order) {
  std::vector<TokenRuns> keys_of_tile;
  for (size_t block = 0; block < key_blocks.size(); ++block) {
    const int64_t keys = TokenCount(*key_blocks[block]);
    for (int64_t first = 0; first < keys; first += size.columns) {
      const int64_t count = std::min(size.columns, keys - first);
      key_tiles_.push_back({static_cast<int64_t>(block), first, count});
      keys_of_tile.push_back(Cut(*key_blocks[block], first, count));
    }
  }
  const int64_t rows = TokenCount(queries);
  row_blocks_ = (rows + size.rows - 1) / size.rows;
  Builder builder(*this, mask);
  for (int64_t row_block = 0; row_block < row_blocks_; ++row_block) {
    const int64_t first = row_block * size.rows;
    const int64_t count = std::min(size.rows, rows - first);
    const TokenRuns queries_of_block = Cut(queries, first, count);
    for (size_t i = 0; i < key_tiles_.size(); ++i) {
      const KeyTile& key_tile = key_tiles_[i];
      builder.Add({row_block, static_cast<int64_t>(i), first, count, key_tile.first, key_tile.count, -1, {}},
                  queries_of_block, keys_of_tile[i]);
    }
  }
  const auto group_of = [order](const AttentionTile& tile) {
    return order == Order::kByRowBlock ? tile.row_block : tile.key_tile;
  };
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [&](const AttentionTile& a, const AttentionTile& b) { return group_of(a) < group_of(b); });
  const int64_t groups = order == Order::kByRowBlock ? row_blocks_ : static_cast<int64_t>(key_tiles_.size());
  auto tile = tiles_.begin();
  for (int64_t group = 0; group <= groups; ++group) {
    tile = std::find_if(tile, tiles_.end(), [&](const AttentionTile& t) { return group_of(t) >= group; });
    group_starts_.push_back(tile - tiles_.begin());
  }
}

absl::Span<const AttentionTile> AttentionPlan::TilesOf(int64_t group) const {
  const auto begin = static_cast<size_t>(group_starts_[static_cast<size_t>(group)]);
  const auto end = static_cast<size_t>(group_starts_[static_cast<size_t>(group) + 1]);
  return absl::MakeConstSpan(tiles_).subspan(begin, end - begin);
}

absl::Span<const ColumnSpan> AttentionPlan::SeenBy(const AttentionTile& tile, int64_t row) const {
  if (tile.spans_at < 0) return {&tile.all, 1};
  const auto begin = static_cast<size_t>(span_starts_[static_cast<size_t>(tile.spans_at + row)]);
  const auto end = static_cast<size_t>(span_starts_[static_cast<size_t>(tile.spans_at + row + 1)]);
  return absl::MakeConstSpan(spans_).subspan(begin, end - begin);
}

}  // namespace weft
