#include "weft/nn/sparse/sparse_attention.h"

#include <algorithm>
#include <utility>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/sequence_runs.h"
#include "src/nn/products/element.h"
#include "src/nn/sparse/strided_queries.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {
namespace {

// Order of the saved tensors: the inputs, then these. The warm-up stage saves no selection.
enum Saved : uint8_t {
  kOut = SparseAttention::kInputs,
  kLse,
  kSelectedKeys,
  kSelectedScores,
  kSelectedCounts,
};

// The inputs of the kernels, as views of the inputs of the module.
struct Operands {
  AttentionProblem problem;
  TensorView q;
  TokenRuns q_runs, key_runs;
  TensorView k, v;
  IndexQueries index;
  TensorView index_k;  // [batch, keys, index_dim]

  KeyBlock keys() const { return {k, v, &key_runs}; }
};

// [batch, keys, 1, index_dim] as [batch, keys, index_dim].
TensorView WithoutHead(TensorView view) {
  view.shape.erase(view.shape.begin() + 2);
  view.strides.erase(view.strides.begin() + 2);
  return view;
}

// Runs of the keys: those of the queries, or, where ranks share the sequence, those of all ranks in rank
// order.
absl::StatusOr<TokenRuns> KeyRuns(const Invocation& invocation, int64_t keys, const std::string& module) {
  const SequenceParts* sequence = invocation.sequence().get();
  if (sequence == nullptr || sequence->ranks() == 1) return SequenceRuns(invocation, keys, module);
  TokenRuns all;
  for (const TokenRuns& part : sequence->parts) all.insert(all.end(), part.begin(), part.end());
  if (TokenCount(all) == keys) return all;
  if (TokenCount(sequence->runs()) == keys) {
    return absl::FailedPreconditionError(absl::StrCat(
        module, " was given the keys of this rank, but ", sequence->ranks(),
        " ranks share the sequence; gather the keys of all ranks, in rank order, or run the whole "
        "sequence on this rank"));
  }
  return absl::InvalidArgumentError(absl::StrCat(module, " was given ", keys, " keys, but the sequence has ",
                                                 TokenCount(all), " tokens over all ranks"));
}

absl::StatusOr<Operands> OperandsOf(const SparseAttention& attention, const Invocation& invocation,
                                    const Tensors& inputs) {
  const TensorView& q = inputs[SparseAttention::kQ].view();
  const TensorView& k = inputs[SparseAttention::kK].view();
  WEFT_ASSIGN_OR_RETURN(TokenRuns q_runs, SequenceRuns(invocation, q.shape[1], attention.name()));
  WEFT_ASSIGN_OR_RETURN(TokenRuns key_runs, KeyRuns(invocation, k.shape[1], attention.name()));
  return Operands{{attention.options().mask, DefaultScale(q.shape[3]), q.shape[2] / k.shape[2], 0},
                  q,
                  std::move(q_runs),
                  std::move(key_runs),
                  k,
                  inputs[SparseAttention::kV].view(),
                  {inputs[SparseAttention::kIndexQ].view(), inputs[SparseAttention::kIndexWeights].view()},
                  WithoutHead(inputs[SparseAttention::kIndexK].view())};
}

// Adds the share of attention mass of the keys that the indexer selects, for every n-th query. `selection` is
// that of all queries, or null in the warm-up stage.
void AddMass(const Operands& operands, int64_t top_k, const KeySelection* selection, IndexerPass& pass) {
  const int64_t stride = pass.mass_stride;
  AttentionMass mass;
  if (selection != nullptr) {
    mass = SelectedMass(operands.problem, operands.q, operands.q_runs, *selection, {operands.keys()}, stride);
  } else {
    const IndexQueries index = {EveryNth(operands.index.q, stride), EveryNth(operands.index.weights, stride)};
    const TokenRuns runs = EveryNth(operands.q_runs, stride);
    const KeySelection selected =
        SelectKeys(operands.problem.mask, top_k, index, runs, {operands.keys()}, {operands.index_k});
    mass = SelectedMass(operands.problem, EveryNth(operands.q, stride), runs, selected, {operands.keys()}, 1);
  }
  pass.selected_mass += mass.selected;
  pass.mass_pairs += mass.pairs;
}

// The fault of the inputs, or null.
const char* FaultOfLayout(const Tensors& inputs) {
  if (inputs.size() != SparseAttention::kInputs)
    return "expected q, k, v and the three outputs of the indexer";
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].shape().size() != (i == SparseAttention::kIndexWeights ? 3U : 4U)) {
      return "all inputs but the weights must have four dims, and the weights three";
    }
    if (inputs[i].dtype() != inputs[0].dtype()) return "all inputs must have one dtype";
    if (!IsComputeDType(inputs[i].dtype())) return "all inputs must be f32, bf16 or f16";
    if (!inputs[i].view().IsContiguous()) return "all inputs must be contiguous";
    if (inputs[i].dim(0) != inputs[0].dim(0)) return "batch sizes must agree";
  }
  return nullptr;
}

// The same for sizes. REQUIRES: FaultOfLayout returned null.
const char* FaultOfSizes(const Tensors& inputs) {
  const Shape& q = inputs[SparseAttention::kQ].shape();
  const Shape& k = inputs[SparseAttention::kK].shape();
  const Shape& v = inputs[SparseAttention::kV].shape();
  const Shape& index_q = inputs[SparseAttention::kIndexQ].shape();
  const Shape& index_k = inputs[SparseAttention::kIndexK].shape();
  const Shape& weights = inputs[SparseAttention::kIndexWeights].shape();
  if (v[1] != k[1] || index_k[1] != k[1]) return "k, v and the index keys must have as many tokens";
  if (index_q[1] != q[1] || weights[1] != q[1]) {
    return "q, the index queries and their weights must have as many tokens";
  }
  if (k[2] != v[2] || k[2] == 0 || q[2] % k[2] != 0) {
    return "k and v must have the same number of heads, and it must divide the number of heads of q";
  }
  if (q[3] != k[3]) return "q and k must have the same head_dim";
  if (index_k[2] != 1 || index_k[3] != index_q[3]) {
    return "the index keys must have one head, as long as those of the index queries";
  }
  return weights[2] == index_q[2] ? nullptr : "every index head needs a weight";
}

// Tensors of a backward, besides its operands.
struct Gradients {
  AttentionBackwardInputs inputs;
  TensorView dq;
  KeyGradients keys;
  IndexerGradients index;
};

// Both write all gradients, and return the indexer's loss.
double WarmUpBackward(const Operands& operands, const Gradients& g, float loss_factor) {
  AttentionBackward(operands.problem, operands.q, operands.q_runs, {operands.keys()}, g.inputs,
                    {.dq = g.dq, .keys = {g.keys}});
  return DenseIndexerLoss(operands.problem, operands.q, operands.q_runs, {operands.keys()}, g.inputs.lse,
                          operands.index, {operands.index_k}, loss_factor, g.index);
}
double SparseBackward(const Operands& operands, const KeySelection& selection, const Gradients& g,
                      float loss_factor) {
  const Tensor target = Tensor::Empty(DType::kF32, selection.scores.shape());
  SparseAttentionBackward(operands.problem, operands.q, selection, {operands.keys()}, g.inputs, g.dq,
                          {g.keys}, target.view());
  return SelectedIndexerLoss(selection, target.view(), operands.index, {operands.keys()}, {operands.index_k},
                             loss_factor, g.index);
}

}  // namespace

IndexerPass& IndexerPassOf(Invocation& invocation) {
  static const char key = 0;
  return invocation.State<IndexerPass>(&key);
}

absl::Span<const std::string_view> SparseAttention::input_names() const {
  static constexpr std::string_view kNames[kInputs] = {"q", "k", "v", "index_q", "index_k", "index_weights"};
  return kNames;
}

absl::Status SparseAttention::CheckInputs(const Tensors& inputs) const {
  WEFT_RETURN_IF_ERROR(Validate(options_.mask));
  if (options_.top_k < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " has a top_k of ", options_.top_k, "; it must be at least 1"));
  }
  const char* fault = FaultOfLayout(inputs);
  if (fault == nullptr) fault = FaultOfSizes(inputs);
  if (fault == nullptr) return absl::OkStatus();
  std::string shapes;
  for (const Tensor& input : inputs) absl::StrAppend(&shapes, " ", ToString(input.shape()));
  return absl::InvalidArgumentError(absl::StrCat(name(), " was given inputs of", shapes, ": ", fault));
}

absl::StatusOr<Tensors> SparseAttention::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputs(inputs));
  if (invocation.pair_mask() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(),
                     " cannot use a PairMask: sparse attention selects keys by its mask and the documents. "
                     "Describe documents by Invocation::SetSequence, or use dense attention"));
  }
  if (invocation.kv_cache() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " cannot use a KvCache: its index keys are not cached. Use dense attention"));
  }
  WEFT_ASSIGN_OR_RETURN(const Operands operands, OperandsOf(*this, invocation, inputs));
  IndexerPass& pass = IndexerPassOf(invocation);
  const TensorView& q = operands.q;
  WEFT_ASSIGN_OR_RETURN(Tensor out,
                        NewOutput(q.dtype, {q.shape[0], q.shape[1], q.shape[2], operands.v.shape[3]}));
  const Tensor lse = Tensor::Empty(DType::kF32, {q.shape[0], q.shape[2], q.shape[1]});
  Tensors saved = inputs;
  saved.push_back(out);
  saved.push_back(lse);
  KeySelection selection;
  if (pass.warm_up) {
    AttentionForward(operands.problem, q, operands.q_runs, {operands.keys()}, out.view(), lse.view());
  } else {
    selection = SelectKeys(options_.mask, options_.top_k, operands.index, operands.q_runs, {operands.keys()},
                           {operands.index_k});
    SparseAttentionForward(operands.problem, q, selection, {operands.keys()}, out.view(), lse.view());
    for (const Tensor& tensor : {selection.keys, selection.scores, selection.counts}) saved.push_back(tensor);
  }
  // A checkpointed forward runs again, and saves then.
  const bool is_final = invocation.is_saving() || !invocation.gradients();
  if (is_final && pass.mass_stride > 0) {
    AddMass(operands, options_.top_k, pass.warm_up ? nullptr : &selection, pass);
  }
  if (invocation.is_saving()) invocation.Save(this, std::move(saved));
  return Tensors{std::move(out)};
}

absl::StatusOr<Tensors> SparseAttention::BackwardImpl(Invocation& invocation,
                                                      const Tensors& output_gradients) {
  const bool has_gradient = output_gradients[0].defined();
  if (has_gradient) WEFT_RETURN_IF_ERROR(CheckContiguousGradients(*this, output_gradients, 1));
  const Tensors saved = invocation.PopSaved(this);
  const Tensor dout =
      has_gradient ? output_gradients[0] : Tensor::Zeros(saved[kOut].dtype(), saved[kOut].shape());
  const Tensors inputs(saved.begin(), saved.begin() + kInputs);
  WEFT_ASSIGN_OR_RETURN(const Operands operands, OperandsOf(*this, invocation, inputs));
  const bool is_shared = invocation.sequence() != nullptr && invocation.sequence()->ranks() > 1;
  Tensors gradients;
  for (uint8_t i = 0; i < kInputs; ++i) {
    const bool is_key = i == kK || i == kV || i == kIndexK;
    const DType dtype = is_key && is_shared ? DType::kF32 : inputs[i].dtype();
    WEFT_ASSIGN_OR_RETURN(Tensor gradient, NewInputGradient(dtype, inputs[i].shape()));
    gradients.push_back(std::move(gradient));
  }
  // The kernels write gradients of index keys in fp32.
  const Tensor& index_k_gradient = gradients[kIndexK];
  const bool is_wide = index_k_gradient.dtype() == DType::kF32;
  const Tensor dk = is_wide ? index_k_gradient : Tensor::Empty(DType::kF32, index_k_gradient.shape());
  const TensorView index_dk = WithoutHead(dk.view());
  const Tensor delta = Tensor::Empty(DType::kF32, saved[kLse].shape());
  AttentionDelta(saved[kOut].view(), dout.view(), delta.view());
  const Gradients views = {
      .inputs = {.lse = saved[kLse].view(), .delta = delta.view(), .dout = dout.view()},
      .dq = gradients[kQ].view(),
      .keys = {gradients[kK].view(), gradients[kV].view()},
      .index = {gradients[kIndexQ].view(), gradients[kIndexWeights].view(), {&index_dk, 1}}};
  IndexerPass& pass = IndexerPassOf(invocation);
  const bool warm_up = saved.size() == kSelectedKeys;
  pass.loss += warm_up ? WarmUpBackward(operands, views, pass.loss_factor)
                       : SparseBackward(
                             operands, {saved[kSelectedKeys], saved[kSelectedScores], saved[kSelectedCounts]},
                             views, pass.loss_factor);
  pass.queries += operands.q.shape[0] * operands.q.shape[1];
  if (!is_wide) WEFT_RETURN_IF_ERROR(StridedCopy(dk.view(), index_k_gradient.view()));
  return gradients;
}

}  // namespace weft
