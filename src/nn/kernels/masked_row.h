// What the passes over a tile's rows do about the columns that a query must not see.
//
// Note [Masked rows]
// Rows are worked on from the first to the last visible column, widened to whole groups of lanes, so that
// loops have no remainder but at the tile's end. Hidden columns between are given a score of -infinity, whose
// exponential is 0; those outside are skipped, and cleared at the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <absl/types/span.h>

#include "src/nn/kernels/attention_plan.h"
#include "src/nn/kernels/vector_math.h"

namespace weft {

inline constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The columns that a row is worked on; none if it sees nothing.
inline ColumnSpan WorkedColumns(absl::Span<const ColumnSpan> seen, int64_t columns) {
  if (seen.empty()) return {0, 0};
  return {seen.front().begin / kLanes * kLanes,
          std::min((seen.back().end + kLanes - 1) / kLanes * kLanes, columns)};
}

inline void HideUnseen(float* scores, absl::Span<const ColumnSpan> seen, int64_t columns) {
  const ColumnSpan worked = WorkedColumns(seen, columns);
  int64_t at = worked.begin;
  for (const ColumnSpan& span : seen) {
    std::fill(scores + at, scores + span.begin, kHidden);
    at = span.end;
  }
  std::fill(scores + at, scores + std::max(at, worked.end), kHidden);
}

// Before the passes over a tile's rows. (Apart from them, as a row that was just written is read slowly.)
inline void HideUnseen(const AttentionPlan& plan, const AttentionTile& tile, float* scores) {
  if (tile.spans_at < 0) return;
  for (int64_t row = 0; row < tile.rows; ++row) {
    HideUnseen(scores + row * tile.columns, plan.SeenBy(tile, row), tile.columns);
  }
}

// Clears what lies outside the range.
inline void ClearOutside(float* values, ColumnSpan range, int64_t columns) {
  std::fill(values, values + range.begin, 0.0F);
  std::fill(values + range.end, values + columns, 0.0F);
}

}  // namespace weft
