// Masking of a tile's rows: excludes the columns (keys) that a row (query) may not attend to.
//
// Note [Masked rows]
// Problem: the visible columns of a row need not start or end at a multiple of the vector width, and may have
//   gaps.
// Rule: the passes over a row compute one range of columns, from the first to the last visible one, rounded
//   out to whole groups of lanes. Hidden columns within the range get a score of -infinity. Columns outside
//   the range are skipped, and zeroed at the end.
// Why it suffices: exp(-infinity) is 0, so that hidden columns contribute nothing. Loops have a remainder
//   only at the end of the tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <absl/types/span.h>

#include "src/nn/attention/attention_plan.h"
#include "src/nn/kernels/vector_math.h"

namespace weft {

// Score of a hidden column.
inline constexpr float kMaskedScore = -std::numeric_limits<float>::infinity();

// The range of columns that is computed for a row with these visible columns. Empty if no column is visible.
inline ColumnSpan ComputedColumns(absl::Span<const ColumnSpan> visible, int64_t columns) {
  if (visible.empty()) return {0, 0};
  return {visible.front().begin / kLanes * kLanes,
          std::min((visible.back().end + kLanes - 1) / kLanes * kLanes, columns)};
}

// Sets the scores of the hidden columns within the computed range to kMaskedScore.
inline void MaskHiddenScores(float* scores, absl::Span<const ColumnSpan> visible, int64_t columns) {
  const ColumnSpan computed = ComputedColumns(visible, columns);
  int64_t at = computed.begin;
  for (const ColumnSpan& span : visible) {
    std::fill(scores + at, scores + span.begin, kMaskedScore);
    at = span.end;
  }
  std::fill(scores + at, scores + std::max(at, computed.end), kMaskedScore);
}

// Masks all rows of a tile. A separate pass before the other passes, because reading a row immediately after
// writing it is slow.
inline void MaskHiddenScores(const AttentionPlan& plan, const AttentionTile& tile, float* scores) {
  if (tile.span_row < 0) return;
  for (int64_t row = 0; row < tile.rows; ++row) {
    MaskHiddenScores(scores + row * tile.columns, plan.VisibleColumns(tile, row), tile.columns);
  }
}

// Zeroes the columns outside `range`.
inline void ZeroOutside(float* values, ColumnSpan range, int64_t columns) {
  std::fill(values, values + range.begin, 0.0F);
  std::fill(values + range.end, values + columns, 0.0F);
}

}  // namespace weft
