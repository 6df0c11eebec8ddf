#include "context_parallel/hooks/split_attention.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

// Converts [batch, tokens, heads, dim] to the layout of the module, contiguous.
Tensor InLayout(const Tensor& bshd, AttentionLayout layout) {
  const Tensor arranged = bshd.Window(AsBshd(bshd.view(), layout));  // The permutation is its own inverse.
  return arranged.view().IsContiguous() ? arranged : arranged.Copy();
}

Tensor FromLayout(const Tensor& tensor, AttentionLayout layout) {
  return tensor.Window(AsBshd(tensor.view(), layout));
}

// See Note [Negative-zero gradients].
Tensor NegativeZeros(DType dtype, const Shape& shape) {
  constexpr float kNegativeZero = -0.0F;
  TensorView source{const_cast<float*>(&kNegativeZero), DType::kF32, shape, Shape(shape.size(), 0)};
  Tensor zeros = Tensor::Empty(dtype, shape);
  const absl::Status filled = StridedCopy(source, zeros.view());
  WEFT_CHECK(filled.ok(), ToStd(filled.message()));
  return zeros;
}

std::array<AttentionSource, 3> SourcesByRole(const AttentionNeighbors& neighbors) {
  return {neighbors.query, neighbors.key, neighbors.value};
}

}  // namespace

SplitAttention::SplitAttention(const Attention& attention, const AttentionNeighbors& neighbors,
                               Shared& shared)
    : attention_(attention), shared_(shared) {
  const std::array<AttentionSource, kRoles> sources = SourcesByRole(neighbors);
  const int64_t heads = neighbors.heads;
  const int64_t kv_heads = neighbors.kv_heads;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].module == nullptr) continue;
    const auto role = static_cast<AttentionRole>(i);
    const auto launch = [this, role, heads, kv_heads](Invocation& invocation,
                                                      const Tensor& local) -> absl::StatusOr<LaunchedTensor> {
      WEFT_ASSIGN_OR_RETURN(const AttentionCall call, MakeCall(invocation, heads, kv_heads));
      ++shared_.counters.launched_by_sources;
      return Launch(call, role, local);
    };
    links_[i] = std::make_unique<AttentionLink>(sources[i], role == AttentionRole::kQuery ? heads : kv_heads,
                                                attention.options().layout, launch);
  }
}

absl::StatusOr<AttentionCall> SplitAttention::MakeCall(Invocation& invocation, int64_t heads,
                                                       int64_t kv_heads) const {
  WEFT_RETURN_IF_ERROR(Annotate(shared_.engine.status(), "context parallelism stopped"));
  const std::shared_ptr<const SequenceParts>& sequence = invocation.sequence();
  if (sequence == nullptr || sequence->ranks() != shared_.group.size() ||
      sequence->own != shared_.group.group_rank) {
    return absl::FailedPreconditionError(absl::StrCat(
        attention_.name(), " is split over ", shared_.group.size(), " ranks, but the invocation ",
        sequence == nullptr ? std::string("has no sequence")
                            : absl::StrCat("has a sequence of ", sequence->ranks(), " parts with rank ",
                                           sequence->own, " as its own"),
        ": pass SequenceLayout::Parts(", shared_.group.group_rank, ") to SetSequence before the pass"));
  }
  AttentionCall call;
  call.mask = attention_.options().mask;
  call.sequence = sequence;
  call.heads = heads;
  call.kv_heads = kv_heads;
  call.saves = invocation.is_saving();
  call.returns_lse = attention_.options().returns_lse;
  call.label = attention_.name();
  call.identity = Hash64(call.label.data(), call.label.size());
  return call;
}

absl::StatusOr<LaunchedTensor> SplitAttention::Launch(const AttentionCall& call, AttentionRole role,
                                                      const Tensor& local) {
  const int64_t tokens = TokenCount(call.sequence->runs());
  if (local.dim(1) != tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(attention_.name(), ": the input has ", local.dim(1),
                     " tokens, but this rank's part of the sequence has ", tokens,
                     ": split the batch by the layout that was passed to Invocation::SetSequence"));
  }
  return shared_.parallel->Launch(call, role, local);
}

absl::StatusOr<AttentionLink::ConsumedInput> SplitAttention::ConsumeOrLaunch(Invocation& invocation,
                                                                             const AttentionCall& call,
                                                                             int role, const Tensor& local) {
  const auto& link = links_[static_cast<size_t>(role)];
  if (link != nullptr) {
    if (std::optional<AttentionLink::ConsumedInput> consumed = link->Consume(invocation, local))
      return *std::move(consumed);
  }
  ++shared_.counters.launched_by_attentions;
  WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched, Launch(call, static_cast<AttentionRole>(role), local));
  return AttentionLink::ConsumedInput{std::move(launched), std::nullopt};
}

absl::StatusOr<Tensors> SplitAttention::Forward(Invocation& invocation, const Attention& attention,
                                                const Tensors& inputs) {
  const AttentionLayout layout = attention.options().layout;
  const Tensor q = FromLayout(inputs[0], layout);
  const Tensor k = FromLayout(inputs[1], layout);
  Pass pass;
  WEFT_ASSIGN_OR_RETURN(pass.call, MakeCall(invocation, q.dim(2), k.dim(2)));
  pass.dtype = q.dtype();
  pass.call.scale = attention.ScaleFor(q.dim(3));
  std::array<LaunchedTensor, kRoles> launched;
  for (int role = 0; role < kRoles; ++role) {
    const auto index = static_cast<size_t>(role);
    WEFT_ASSIGN_OR_RETURN(AttentionLink::ConsumedInput consumed,
                          ConsumeOrLaunch(invocation, pass.call, role, FromLayout(inputs[index], layout)));
    launched[index] = std::move(consumed.launched);
    pass.source_calls[index] = consumed.call;
    pass.shapes[index] = inputs[index].shape();
  }
  WEFT_ASSIGN_OR_RETURN(AttentionParallel::Result result,
                        shared_.parallel->Forward(pass.call, std::move(launched[0]), std::move(launched[1]),
                                                  std::move(launched[2])));
  if (invocation.is_saving()) {
    invocation.Save(&attention, std::move(result.saved));
    invocation.State<Passes>(this).push_back(std::move(pass));
  }
  Tensors outputs{InLayout(result.out, layout)};
  if (attention.options().returns_lse) outputs.push_back(std::move(result.lse));
  return outputs;
}

absl::StatusOr<Tensors> SplitAttention::Backward(Invocation& invocation, const Attention& attention,
                                                 const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(Annotate(shared_.engine.status(), "context parallelism stopped"));
  auto& passes = invocation.State<Passes>(this);
  WEFT_CHECK(!passes.empty(), "attention backward without a forward");
  const Pass pass = std::move(passes.back());
  passes.pop_back();
  const Tensor dout = FromLayout(output_gradients[0], attention.options().layout);
  WEFT_ASSIGN_OR_RETURN(AttentionParallel::Gradients gradients,
                        shared_.parallel->Backward(pass.call, invocation.PopSaved(&attention), dout));
  Tensors input_gradients;
  for (PendingTensor* gradient : {&gradients.dq, &gradients.dk, &gradients.dv}) {
    const auto role = static_cast<int>(input_gradients.size());
    WEFT_ASSIGN_OR_RETURN(Tensor delivered, DeliverGradient(invocation, pass, role, std::move(*gradient)));
    input_gradients.push_back(std::move(delivered));
  }
  return input_gradients;
}

absl::StatusOr<Tensor> SplitAttention::DeliverGradient(Invocation& invocation, const Pass& pass, int role,
                                                       PendingTensor gradient) {
  const auto index = static_cast<size_t>(role);
  const AttentionLayout layout = attention_.options().layout;
  if (!pass.source_calls[index]) {
    WEFT_ASSIGN_OR_RETURN(const Tensor received, gradient.Wait());
    return InLayout(received, layout);
  }
  Tensor zeros = NegativeZeros(pass.dtype, pass.shapes[index]);
  WEFT_RETURN_IF_ERROR(
      links_[index]->ReturnGradient(invocation, *pass.source_calls[index], std::move(gradient)));
  return zeros;
}

}  // namespace weft
