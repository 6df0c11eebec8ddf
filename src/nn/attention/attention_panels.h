// The attention kernels on bf16 panels, for CPUs with AVX512-BF16 or AMX.
//
// Note [Attention on panels]
// Problem: a matrix library packs the operands of each product. In attention a product is one tile of scores,
//   and its operands are read by many tiles.
// Rule: queries, keys, values and output gradients are packed once for all tiles. Forward takes a strip of 32
//   queries at a time: its products with a tile's keys, the softmax of these scores, which rounds the weights
//   into packed operands, and their product with the values. Backward computes the weights and the gradients
//   of the scores likewise, in the two forms that its products need:
//     dV^T += dO^T P,  dK^T += Q^T dS    P and dS are panels of B: keys are lines, and queries are k.
//     dQ += dS K                         dS is a panel of A: queries are lines, and keys are k.
//   The sums stay in the layout of products until a key tile (dV, dK) or all of them (dQ) are done.
// Why it suffices: no operand is packed or transposed between the two products that write and read it.
// Tiles start and end at multiples of kTileAlignment, as panels do.
//
// Thread safety and determinism: as for AttentionForward.
#pragma once

#include <absl/types/span.h>

#include "src/nn/attention/attention_plan.h"
#include "src/nn/products/panel_kernels.h"
#include "weft/nn/attention_kernel.h"

namespace weft {

// The unit by which AttentionForward and AttentionBackward of these queries multiply panels. Null: they take
// the matrix library.
const panels::PanelUnit* AttentionUnit(const TensorView& q);

// As AttentionForward and AttentionBackward. REQUIRES: q is bf16.
void AttentionForwardByPanels(const panels::PanelUnit& unit, const AttentionProblem& problem,
                              const TensorView& q, const TokenRuns& q_runs, absl::Span<const KeyBlock> keys,
                              const TensorView& out, const TensorView& lse);
void AttentionBackwardByPanels(const panels::PanelUnit& unit, const AttentionProblem& problem,
                               const TensorView& q, const TokenRuns& q_runs, absl::Span<const KeyBlock> keys,
                               const AttentionBackwardInputs& inputs, const AttentionGradients& gradients);

}  // namespace weft
