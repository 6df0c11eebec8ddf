#include <cmath>

#include "src/nn/sparse/selected_keys.h"
#include "src/nn/sparse/strided_queries.h"
#include "weft/core/status.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {

// The selected keys' share of a softmax is exp(lse of the selected scores - lse of all scores). Both are
// outputs of a forward.
AttentionMass SelectedMass(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                           const KeySelection& selection, absl::Span<const KeyBlock> keys,
                           int64_t query_stride) {
  WEFT_CHECK(query_stride > 0, "the share of attention mass needs a positive stride of queries");
  AttentionMass mass;
  if (q.shape[1] == 0 || keys.empty()) return mass;
  const TensorView some = EveryNth(q, query_stride);
  const KeySelection selected = {selection.keys.Window(EveryNth(selection.keys.view(), query_stride)),
                                 selection.scores.Window(EveryNth(selection.scores.view(), query_stride)),
                                 selection.counts.Window(EveryNth(selection.counts.view(), query_stride))};
  const Tensor out = Tensor::Empty(DType::kF32, {q.shape[0], some.shape[1], q.shape[2], keys[0].v.shape[3]});
  const Tensor all = Tensor::Empty(DType::kF32, {q.shape[0], q.shape[2], some.shape[1]});
  const Tensor part = Tensor::Empty(DType::kF32, all.shape());
  AttentionForward(problem, some, EveryNth(q_runs, query_stride), keys, out.view(), all.view());
  SparseAttentionForward(problem, some, selected, keys, out.view(), part.view());
  for (int64_t i = 0; i < all.elements(); ++i) {
    if (std::isinf(all.As<float>()[i])) continue;  // No visible key.
    mass.selected +=
        std::exp(static_cast<double>(part.As<float>()[i]) - static_cast<double>(all.As<float>()[i]));
    ++mass.pairs;
  }
  return mass;
}

}  // namespace weft
