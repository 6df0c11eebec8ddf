// Builder of an AttentionPlan: finds the tiles to compute.
//
// Note [Partial tiles]
// Problem: on the diagonal of a causal mask, or at the border of documents, only some pairs of a tile are
//   visible. Computing the whole tile would waste a third of the time of short sequences.
// Rule: such a tile is split into groups of kPartRows rows. Each group is trimmed to the columns that any of
//   its rows attends to, rounded out to multiples of kTrim. Adjacent groups are merged if that adds little
//   work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/nn/attention/attention_plan.h"

namespace weft {

class AttentionPlan::Builder {
 public:
  Builder(AttentionPlan& plan, const AttentionMask& mask, const RowPairs& pairs)
      : plan_(plan), mask_(mask), pairs_(pairs) {}

  // Adds the tiles for `whole`, the intersection of a row block and a key tile, whose tokens are `queries`
  // and `keys`: no tile if no pair is visible, one tile if all pairs are, otherwise parts. Does not set
  // initializes_rows and initializes_keys.
  void Add(const AttentionTile& whole, const TokenRuns& queries, const TokenRuns& keys);

 private:
  // Adds the visible columns of each row of the row block, counted from the start of the key tile. Returns
  // the number of visible pairs.
  int64_t AddSpans(const TokenRuns& queries, const TokenRuns& keys);
  // Removes what the last AddSpans has added.
  void RemoveSpans();
  void AddSpansOfRow(int64_t document, int64_t position, const TokenRuns& keys);
  // Adds the visible ones of the keys `keys` of a run, whose first key is column `start`, for the query at
  // `position`.
  void AddVisible(size_t row_start, int64_t start, int64_t position, ColumnSpan keys, const TokenRun& run);
  // Adds columns to the row whose spans begin at `row_start`, after its last ones.
  void AddColumns(size_t row_start, ColumnSpan columns);
  void AddParts(const AttentionTile& whole);
  // The tile for rows [row, row + rows) of the row block; none if they have no visible column. Its first_key
  // is counted from the start of the key tile until Push.
  std::optional<AttentionTile> PartOf(const AttentionTile& whole, int64_t row, int64_t rows) const;
  // Adds the part, with spans relative to its first column and first_key relative to the key block.
  void Push(AttentionTile part);

  AttentionPlan& plan_;
  const AttentionMask& mask_;
  const RowPairs pairs_;
  size_t first_start_ = 0;  // Index of the first row of the current `whole` in the plan's span_starts_.
};

}  // namespace weft
