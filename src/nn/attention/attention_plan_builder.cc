#include "src/nn/attention/attention_plan_builder.h"

#include <algorithm>
#include <numeric>

namespace weft {
namespace {

// Rows of a part of a tile. More rows make the products faster; fewer rows compute fewer hidden pairs. On the
// diagonal of a causal mask, a part with 64 rows computes 32 hidden columns per row on average.
constexpr int64_t kPartRows = 64;
// The columns of a part are rounded out to multiples of this.
constexpr int64_t kTrim = 64;
// Parts are merged if that increases the number of computed pairs by at most 1 / kMergeCost.
constexpr int64_t kMergeCost = 32;
static_assert(kPartRows % kTileAlignment == 0 && kTrim % kTileAlignment == 0);

AttentionTile Merged(const AttentionTile& upper, const AttentionTile& lower) {
  AttentionTile merged = upper;
  merged.rows = lower.first_row + lower.rows - upper.first_row;
  merged.first_key = std::min(upper.first_key, lower.first_key);
  merged.columns =
      std::max(upper.first_key + upper.columns, lower.first_key + lower.columns) - merged.first_key;
  return merged;
}

bool WorthMerging(const AttentionTile& upper, const AttentionTile& lower) {
  const AttentionTile merged = Merged(upper, lower);
  const int64_t separate = upper.rows * upper.columns + lower.rows * lower.columns;
  return merged.rows * merged.columns <= separate + separate / kMergeCost;
}

}  // namespace

ColumnSpan VisibleKeysOfRun(const AttentionMask& mask, int64_t position, const TokenRun& keys) {
  if (!mask.causal) return {0, keys.count};
  const int64_t newest = position - keys.position;
  const int64_t oldest = mask.keys_before.has_value() ? newest - *mask.keys_before : 0;
  return {std::max<int64_t>(oldest, 0), std::min(newest + 1, keys.count)};
}

void AttentionPlan::Builder::Add(const AttentionTile& whole, const TokenRuns& queries,
                                 const TokenRuns& keys) {
  int64_t pairs = VisiblePairs(mask_, queries, keys);
  if (pairs == 0) return;
  const int64_t all = whole.rows * whole.columns;
  const bool has_spans = pairs < all || !pairs_.AllVisible();
  if (has_spans) pairs = AddSpans(queries, keys);
  if (pairs > 0 && pairs < all) {
    AddParts(whole);
    return;
  }
  if (has_spans) RemoveSpans();
  if (pairs == all) plan_.tiles_.push_back(whole);
}

int64_t AttentionPlan::Builder::AddSpans(const TokenRuns& queries, const TokenRuns& keys) {
  const size_t first_span = plan_.spans_.size();
  first_start_ = plan_.span_starts_.size();
  for (const TokenRun& run : queries) {
    for (int64_t i = 0; i < run.count; ++i) {
      plan_.span_starts_.push_back(static_cast<int64_t>(plan_.spans_.size()));
      AddSpansOfRow(run.document, run.position + i, keys);
    }
  }
  plan_.span_starts_.push_back(static_cast<int64_t>(plan_.spans_.size()));
  return std::accumulate(plan_.spans_.begin() + static_cast<ptrdiff_t>(first_span), plan_.spans_.end(),
                         int64_t{0},
                         [](int64_t sum, const ColumnSpan& span) { return sum + span.end - span.begin; });
}

void AttentionPlan::Builder::RemoveSpans() {
  plan_.spans_.resize(static_cast<size_t>(plan_.span_starts_[first_start_]));
  plan_.span_starts_.resize(first_start_);
}

void AttentionPlan::Builder::AddSpansOfRow(int64_t document, int64_t position, const TokenRuns& keys) {
  const auto row_start = static_cast<size_t>(plan_.span_starts_.back());
  int64_t start = 0;
  for (const TokenRun& run : keys) {
    const ColumnSpan visible = VisibleKeysOfRun(mask_, position, run);
    if (run.document == document && visible.begin < visible.end) {
      AddVisible(row_start, start, position, visible, run);
    }
    start += run.count;
  }
}

void AttentionPlan::Builder::AddVisible(size_t row_start, int64_t start, int64_t position, ColumnSpan keys,
                                        const TokenRun& run) {
  if (pairs_.AllVisible()) {
    AddColumns(row_start, {start + keys.begin, start + keys.end});
    return;
  }
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    if (pairs_.IsVisible(position, run.position + key)) AddColumns(row_start, {start + key, start + key + 1});
  }
}

void AttentionPlan::Builder::AddColumns(size_t row_start, ColumnSpan columns) {
  std::vector<ColumnSpan>& spans = plan_.spans_;
  if (spans.size() > row_start && spans.back().end == columns.begin) {
    spans.back().end = columns.end;
  } else {
    spans.push_back(columns);
  }
}

void AttentionPlan::Builder::AddParts(const AttentionTile& whole) {
  std::optional<AttentionTile> part;
  for (int64_t row = 0; row < whole.rows; row += kPartRows) {
    const std::optional<AttentionTile> next = PartOf(whole, row, std::min(kPartRows, whole.rows - row));
    if (!next.has_value()) continue;
    if (part.has_value() && WorthMerging(*part, *next)) {
      part = Merged(*part, *next);
    } else {
      if (part.has_value()) Push(*part);
      part = next;
    }
  }
  if (part.has_value()) Push(*part);
}

std::optional<AttentionTile> AttentionPlan::Builder::PartOf(const AttentionTile& whole, int64_t row,
                                                            int64_t rows) const {
  AttentionTile part = whole;
  part.first_row += row;
  part.rows = rows;
  part.span_row = static_cast<int64_t>(first_start_) + row;
  ColumnSpan columns = {whole.columns, 0};
  for (int64_t i = 0; i < rows; ++i) {
    const absl::Span<const ColumnSpan> visible = plan_.VisibleColumns(part, i);
    if (visible.empty()) continue;
    columns = {std::min(columns.begin, visible.front().begin), std::max(columns.end, visible.back().end)};
  }
  if (columns.begin >= columns.end) return std::nullopt;
  part.first_key = columns.begin / kTrim * kTrim;
  part.columns = std::min((columns.end + kTrim - 1) / kTrim * kTrim, whole.columns) - part.first_key;
  return part;
}

void AttentionPlan::Builder::Push(AttentionTile part) {
  const auto starts = plan_.span_starts_.begin() + part.span_row;
  for (int64_t i = starts[0]; i < starts[part.rows]; ++i) {
    ColumnSpan& span = plan_.spans_[static_cast<size_t>(i)];
    span = {span.begin - part.first_key, span.end - part.first_key};
  }
  part.first_key += plan_.key_tiles_[static_cast<size_t>(part.key_tile)].first;
  part.all = {0, part.columns};
  plan_.tiles_.push_back(part);
}

}  // namespace weft
