#include "context_parallel/hooks/split_attention.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "context_parallel/hooks/sequence_over.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

std::array<ExchangeSource, 3> SourcesByRole(const AttentionNeighbors& neighbors) {
  return {neighbors.query, neighbors.key, neighbors.value};
}

}  // namespace

SplitAttention::SplitAttention(const Attention& attention, const AttentionNeighbors& neighbors,
                               Shared& shared)
    : attention_(attention), shared_(shared) {
  const std::array<ExchangeSource, kRoles> sources = SourcesByRole(neighbors);
  const int64_t heads = neighbors.heads;
  const int64_t kv_heads = neighbors.kv_heads;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto role = static_cast<AttentionRole>(i);
    const auto launch = [this, role, heads, kv_heads](Invocation& invocation,
                                                      const Tensor& local) -> absl::StatusOr<LaunchedTensor> {
      WEFT_ASSIGN_OR_RETURN(const AttentionCall call, MakeCall(invocation, heads, kv_heads));
      ++shared_.counters.launched_by_sources;
      return Launch(call, role, local);
    };
    links_[i] = std::make_unique<SourceLink>(
        SourceLink::Options{.tensor = absl::StrCat(ToAbsl(Name(role)), " of ", attention.name()),
                            .source = sources[i],
                            .heads = role == AttentionRole::kQuery ? heads : kv_heads,
                            .layout = attention.options().layout,
                            .launch = launch});
  }
}

absl::StatusOr<AttentionCall> SplitAttention::MakeCall(Invocation& invocation, int64_t heads,
                                                       int64_t kv_heads) const {
  WEFT_RETURN_IF_ERROR(Annotate(shared_.engine.status(), "context parallelism stopped"));
  WEFT_ASSIGN_OR_RETURN(
      const std::shared_ptr<const SequenceParts> sequence,
      SequenceOver(invocation, shared_.group.size(), shared_.group.group_rank, attention_.name()));
  AttentionCall call;
  call.mask = attention_.options().mask;
  call.kernels = &shared_.kernels;
  call.pair_mask = invocation.pair_mask();
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

absl::StatusOr<Tensors> SplitAttention::Forward(Invocation& invocation, const Attention& attention,
                                                const Tensors& inputs) {
  const AttentionLayout layout = attention.options().layout;
  const Tensor q = AsBshd(inputs[0], layout);
  const Tensor k = AsBshd(inputs[1], layout);
  Pass pass;
  WEFT_ASSIGN_OR_RETURN(pass.call, MakeCall(invocation, q.dim(2), k.dim(2)));
  pass.call.scale = attention.ScaleFor(q.dim(3));
  std::array<LaunchedTensor, kRoles> launched;
  for (size_t i = 0; i < links_.size(); ++i) {
    const auto launch_here = [&](const Tensor& local) {
      ++shared_.counters.launched_by_attentions;
      return Launch(pass.call, static_cast<AttentionRole>(i), local);
    };
    WEFT_ASSIGN_OR_RETURN(SourceLink::ConsumedInput consumed,
                          links_[i]->ConsumeInput(invocation, inputs[i], launch_here));
    launched[i] = std::move(consumed.launched);
    pass.origins[i] = std::move(consumed.origin);
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
  const Tensor dout = AsBshd(output_gradients[0], attention.options().layout);
  WEFT_ASSIGN_OR_RETURN(AttentionParallel::Gradients gradients,
                        shared_.parallel->Backward(pass.call, invocation.PopSaved(&attention), dout));
  Tensors input_gradients;
  for (PendingTensor* gradient : {&gradients.dq, &gradients.dk, &gradients.dv}) {
    const size_t role = input_gradients.size();
    WEFT_ASSIGN_OR_RETURN(Tensor returned,
                          links_[role]->ReturnGradient(invocation, pass.origins[role], std::move(*gradient)));
    input_gradients.push_back(std::move(returned));
  }
  return input_gradients;
}

}  // namespace weft
