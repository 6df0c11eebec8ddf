// Finds the tiles of an attention's plan.
//
// Note [Parts of tiles]
// Where only a part of a tile is visible, as on the diagonal of a causal mask or at the border of documents,
// computing all of it would cost short sequences a third of their time. Such a tile is cut into groups of
// rows, each trimmed to the columns that one of them sees, by multiples of some lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/nn/kernels/attention_plan.h"

namespace weft {

class AttentionPlan::Builder {
 public:
  Builder(AttentionPlan& plan, const AttentionMask& mask) : plan_(plan), mask_(mask) {}

  // Adds what there is to compute of a row block's meeting with a key tile, `whole`, whose tokens are
  // `queries` and `keys`: nothing if nothing is visible, one tile if all is, else parts. Leaves begins_rows
  // and begins_keys open.
  void Add(const AttentionTile& whole, const TokenRuns& queries, const TokenRuns& keys);

 private:
  // What each row of the row block sees, in columns of the key tile.
  void AddSpans(const TokenRuns& queries, const TokenRuns& keys);
  void AddSpansOfRow(int64_t document, int64_t position, const TokenRuns& keys);
  void AddParts(const AttentionTile& whole);
  // The tile of rows [row, row + rows) of the row block; none if they see nothing. Until it is pushed its
  // first_key counts from the key tile's start.
  std::optional<AttentionTile> PartOf(const AttentionTile& whole, int64_t row, int64_t rows) const;
  void Push(AttentionTile part);

  AttentionPlan& plan_;
  const AttentionMask& mask_;
  size_t first_start_ = 0;  // Of the row block with the key tile, in the plan's span_starts_.
};

}  // namespace weft
