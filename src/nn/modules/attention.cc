#include "weft/nn/attention.h"

#include <algorithm>
#include <utility>

#include "src/nn/attention/head_rows.h"
#include "src/nn/base/module_checks.h"
#include "src/nn/base/sequence_runs.h"
#include "src/nn/products/element.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

AttentionProblem ProblemOf(const Invocation& invocation, const Attention& attention, const TensorView& q,
                           const TensorView& k) {
  return {.mask = attention.options().mask,
          .scale = attention.ScaleFor(q.shape[3]),
          .group = q.shape[2] / std::max<int64_t>(1, k.shape[2]),
          .pair_mask = invocation.pair_mask()};
}

// Keys and values that the queries of a pass attend to, with the documents and positions of the keys.
struct PassKeys {
  TensorView k, v;
  TokenRuns runs;
};

// Those of this pass and, with a cache, of all earlier ones.
absl::StatusOr<PassKeys> KeysOf(const Invocation& invocation, const Attention& attention, const TensorView& k,
                                const TensorView& v) {
  WEFT_ASSIGN_OR_RETURN(TokenRuns runs, SequenceRuns(invocation, k.shape[1], attention.name()));
  if (invocation.kv_cache() == nullptr) return PassKeys{k, v, std::move(runs)};
  if (runs.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(attention.name(), " has a KvCache and a sequence of ", runs.size(),
                     " runs; generate one document, of which each pass has consecutive tokens"));
  }
  WEFT_ASSIGN_OR_RETURN(const KvCache::Keys keys,
                        invocation.kv_cache()->Append(attention, k, v, runs[0].position));
  return PassKeys{keys.k, keys.v, {{runs[0].document, 0, keys.k.shape[1]}}};
}

// The fault for which the kernels cannot read a tensor of four dims. Null: there is none.
const char* FaultOfStrides(const TensorView& view, AttentionLayout layout) {
  if (view.shape[3] > 1 && view.strides[3] != 1) return "the last dim must be contiguous";
  if (HasSeparateTokens(AsBshd(view, layout))) return nullptr;
  return "the stride of the tokens must be at least the size of the last dim; copy a tensor whose tokens are "
         "expanded or overlap";
}

}  // namespace

TensorView AsBshd(const TensorView& view, AttentionLayout layout) {
  return layout == AttentionLayout::kBshd ? view : view.Permute({0, 2, 1, 3});
}

absl::StatusOr<KvCache::Keys> KvCache::Append(const Attention& attention, const TensorView& k,
                                              const TensorView& v, int64_t position) {
  Entry& entry = entries_[&attention];
  const int64_t end = position + k.shape[1];
  if (position != entry.tokens) {
    return absl::FailedPreconditionError(absl::StrCat(
        attention.name(), " was given tokens from position ", position, ", but its KvCache has ",
        entry.tokens, " tokens; set the sequence of each pass to begin where the last pass ended"));
  }
  if (end > capacity_) {
    return absl::InvalidArgumentError(absl::StrCat(attention.name(), " was given tokens up to position ", end,
                                                   ", but its KvCache has a capacity of ", capacity_,
                                                   "; create it with a larger one"));
  }
  if (!entry.k.defined()) {
    entry.k = Tensor::Empty(k.dtype, {k.shape[0], capacity_, k.shape[2], k.shape[3]});
    entry.v = Tensor::Empty(v.dtype, {v.shape[0], capacity_, v.shape[2], v.shape[3]});
  }
  if (entry.k.dim(0) != k.shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat(attention.name(), " was given a batch of ", k.shape[0],
                                                   ", but its KvCache has one of ", entry.k.dim(0),
                                                   "; keep the batch size"));
  }
  WEFT_RETURN_IF_ERROR(StridedCopy(k, entry.k.view().Slice(1, position, k.shape[1])));
  WEFT_RETURN_IF_ERROR(StridedCopy(v, entry.v.view().Slice(1, position, v.shape[1])));
  entry.tokens = end;
  return Keys{entry.k.view().Slice(1, 0, end), entry.v.view().Slice(1, 0, end)};
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const auto& [attention, entry] : entries_)
    bytes += static_cast<int64_t>(entry.k.bytes() + entry.v.bytes());
  return bytes;
}

absl::Span<const std::string_view> Attention::input_names() const {
  static constexpr std::string_view kNames[] = {"q", "k", "v"};
  return kNames;
}

absl::Status Attention::CheckInputs(const Tensors& inputs) const {
  const auto invalid = [&](const char* what) {
    std::string shapes;
    for (const Tensor& input : inputs) absl::StrAppend(&shapes, " ", ToString(input.shape()));
    return absl::InvalidArgumentError(absl::StrCat(name(), " was given inputs of", shapes, ": ", what));
  };
  WEFT_RETURN_IF_ERROR(Validate(options_.mask));
  if (options_.scale.has_value() && !(*options_.scale > 0.0F)) return invalid("the scale must be positive");
  if (inputs.size() != 3) return invalid("expected the three inputs q, k and v");
  for (const Tensor& input : inputs) {
    if (input.shape().size() != 4) return invalid("q, k and v must have four dims");
    if (input.dtype() != inputs[0].dtype()) return invalid("q, k and v must have one dtype");
    if (!IsComputeDType(input.dtype())) return invalid("q, k and v must be f32, bf16 or f16");
    if (const char* fault = FaultOfStrides(input.view(), options_.layout)) return invalid(fault);
  }
  const TensorView q = AsBshd(inputs[0].view(), options_.layout);
  const TensorView k = AsBshd(inputs[1].view(), options_.layout);
  const TensorView v = AsBshd(inputs[2].view(), options_.layout);
  if (q.shape[0] != k.shape[0] || k.shape[0] != v.shape[0]) return invalid("batch sizes must agree");
  if (k.shape[1] != v.shape[1]) return invalid("k and v must have the same number of tokens");
  if (k.shape[2] != v.shape[2] || k.shape[2] == 0 || q.shape[2] % k.shape[2] != 0) {
    return invalid("k and v must have the same number of heads, and it must divide the number of heads of q");
  }
  if (q.shape[3] != k.shape[3]) return invalid("q and k must have the same head_dim");
  if (options_.mask.causal && q.shape[1] != k.shape[1]) {
    return invalid(
        "a causal mask needs as many keys as queries; split both alike, or use a mask that is not causal");
  }
  return absl::OkStatus();
}

absl::Status Attention::CheckCaching(const Invocation& invocation) const {
  if (invocation.kv_cache() == nullptr) return absl::OkStatus();
  if (invocation.gradients()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(), " has a KvCache in a pass with gradients; create the invocation without them"));
  }
  if (operator_ != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        name(), " has a KvCache and an operator, which reads the keys of one pass only; set no operator"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> Attention::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputs(inputs));
  WEFT_RETURN_IF_ERROR(CheckCaching(invocation));
  WEFT_RETURN_IF_ERROR(CheckPairMask(invocation, name()));
  return operator_ != nullptr ? operator_->Forward(invocation, *this, inputs)
                              : ForwardLocal(invocation, inputs);
}

absl::StatusOr<Tensors> Attention::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckGradientCount(*this, {output_gradients[0]}, 1));
  if (output_gradients.size() > 1 && output_gradients[1].defined()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": the log-sum-exp has no gradient; pass an undefined tensor as the gradient of output 1"));
  }
  if (const char* fault = FaultOfStrides(output_gradients[0].view(), options_.layout)) {
    return absl::InvalidArgumentError(absl::StrCat(name(), " was given a gradient of ",
                                                   ToString(output_gradients[0].shape()), ": ", fault));
  }
  return operator_ != nullptr ? operator_->Backward(invocation, *this, output_gradients)
                              : BackwardLocal(invocation, output_gradients);
}

absl::StatusOr<Tensors> Attention::ForwardLocal(Invocation& invocation, const Tensors& inputs) const {
  if (invocation.sequence() != nullptr && invocation.sequence()->ranks() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(), " was given one part of a sequence that ", invocation.sequence()->ranks(),
                     " ranks share, but has no operator to get the keys of the other ranks; parallelize it "
                     "with ContextParallel, or run the whole sequence on this rank"));
  }
  const TensorView q = AsBshd(inputs[0].view(), options_.layout);
  const TensorView k = AsBshd(inputs[1].view(), options_.layout);
  const TensorView v = AsBshd(inputs[2].view(), options_.layout);
  WEFT_ASSIGN_OR_RETURN(const TokenRuns q_runs, SequenceRuns(invocation, q.shape[1], name()));
  WEFT_ASSIGN_OR_RETURN(const PassKeys keys, KeysOf(invocation, *this, k, v));
  Shape out_shape = inputs[0].shape();
  out_shape[3] = v.shape[3];
  WEFT_ASSIGN_OR_RETURN(Tensor out, NewOutput(q.dtype, std::move(out_shape)));
  WEFT_ASSIGN_OR_RETURN(Tensor lse, NewOutput(DType::kF32, {q.shape[0], q.shape[2], q.shape[1]}));
  AttentionForward(ProblemOf(invocation, *this, q, k), q, q_runs, {{keys.k, keys.v, &keys.runs}},
                   AsBshd(out.view(), options_.layout), lse.view());
  if (invocation.is_saving()) invocation.Save(this, {inputs[0], inputs[1], inputs[2], out, lse});
  Tensors outputs = {std::move(out)};
  if (options_.returns_lse) outputs.push_back(std::move(lse));
  return outputs;
}

absl::StatusOr<Tensors> Attention::BackwardLocal(Invocation& invocation,
                                                 const Tensors& output_gradients) const {
  const Tensors saved = invocation.PopSaved(this);
  Tensors gradients;
  for (int i = 0; i < 3; ++i) {
    WEFT_ASSIGN_OR_RETURN(Tensor gradient, NewInputGradient(saved[i].dtype(), saved[i].shape()));
    gradients.push_back(std::move(gradient));
  }
  const auto view = [&](const Tensor& tensor) { return AsBshd(tensor.view(), options_.layout); };
  const TensorView q = view(saved[0]);
  const TensorView k = view(saved[1]);
  const TensorView dout = view(output_gradients[0]);
  WEFT_ASSIGN_OR_RETURN(const TokenRuns q_runs, SequenceRuns(invocation, q.shape[1], name()));
  WEFT_ASSIGN_OR_RETURN(const TokenRuns k_runs, SequenceRuns(invocation, k.shape[1], name()));
  const Tensor delta = Tensor::Empty(DType::kF32, saved[4].shape());
  AttentionDelta(view(saved[3]), dout, delta.view());
  AttentionBackward(ProblemOf(invocation, *this, q, k), q, q_runs, {{k, view(saved[2]), &k_runs}},
                    {.lse = saved[4].view(), .delta = delta.view(), .dout = dout},
                    {.dq = view(gradients[0]), .keys = {{view(gradients[1]), view(gradients[2])}}});
  return gradients;
}

}  // namespace weft
