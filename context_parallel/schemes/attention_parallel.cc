#include "context_parallel/schemes/attention_parallel.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {
namespace {

// Checks the shapes of q, k and v against each other.
absl::Status CheckTogether(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (k.dim(0) == q.dim(0) && v.dim(0) == q.dim(0) && k.dim(3) == q.dim(3)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "q, k and v of ", call.label, " are ", ToString(q.shape()), ", ", ToString(k.shape()), " and ",
      ToString(v.shape()), ": q, k and v must have the same batch, q and k the same head size"));
}

const AttentionKernels& DefaultKernels() {
  static const AttentionKernels kernels;
  return kernels;
}

std::unique_ptr<SequenceAttention> MakeOuter(const ContextScheme& scheme, const LevelLane& lane) {
  if (scheme.ring_rotation) {
    return scheme.ring_rotation == RingRotation::kShift ? MakeShiftedRingAttention(lane)
                                                        : MakeGatheredRingAttention(lane);
  }
  return scheme.balance == LoadBalance::kQueryExchange ? MakeBalancedGatherAttention(lane)
                                                       : MakeGatherAttention(lane);
}

// The ranks first, first + step, … of the context group, `count` of them. REQUIRES: this rank is one of them.
ProcessGroup LevelGroup(const ProcessGroup& context, std::string_view level, int first, int step, int count) {
  ProcessGroup group{.name = absl::StrCat(context.name, "_", ToAbsl(level)), .ranks = {}, .group_rank = 0};
  for (int i = 0; i < count; ++i) {
    const int member = first + i * step;
    if (member == context.group_rank) group.group_rank = i;
    group.ranks.push_back(context.ranks[static_cast<size_t>(member)]);
  }
  return group;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionParallel>> AttentionParallel::Create(const ContextScheme& scheme,
                                                                             CommEngine& engine,
                                                                             BufferPool& pool,
                                                                             const ProcessGroup& context) {
  const int ranks = context.size();
  WEFT_RETURN_IF_ERROR(scheme.Validate(ranks, AttentionMask{}));
  const int inner_size = scheme.inner_ranks(ranks);
  const int outer_size = scheme.outer_ranks(ranks);
  const int inner_rank = context.group_rank % inner_size;
  std::optional<LevelLane> inner;
  if (inner_size > 1) {
    const ProcessGroup group = LevelGroup(context, "heads", context.group_rank - inner_rank, 1, inner_size);
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.SharedLane(group, LanePurpose::kContext));
    inner = LevelLane{&engine, &pool, lane};
  }
  std::unique_ptr<SequenceAttention> outer = MakeLocalAttention(pool);
  if (outer_size > 1) {
    const ProcessGroup group = LevelGroup(context, "sequence", inner_rank, inner_size, outer_size);
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.SharedLane(group, LanePurpose::kContext));
    outer = MakeOuter(scheme, LevelLane{&engine, &pool, lane});
  }
  return std::unique_ptr<AttentionParallel>(
      new AttentionParallel(pool, ranks, context.group_rank, inner, std::move(outer)));
}

AttentionParallel::AttentionParallel(BufferPool& pool, int ranks, int rank, std::optional<LevelLane> inner,
                                     std::unique_ptr<SequenceAttention> outer)
    : pool_(&pool), ranks_(ranks), rank_(rank), inner_(inner), outer_(std::move(outer)) {
  if (inner_) exchange_.emplace(*inner_->engine, *inner_->pool, inner_->lane);
}

absl::Status AttentionParallel::CheckLocal(const AttentionCall& call, AttentionRole role,
                                           const Tensor& local) const {
  const int64_t heads = role == AttentionRole::kQuery ? call.heads : call.kv_heads;
  const int64_t tokens = TokenCount(call.sequence->runs());
  if (local.shape().size() == 4 && local.dim(1) == tokens && local.dim(2) == heads) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(Name(role)), " of ", call.label, " is ",
                                                 ToString(local.shape()), ": expected [batch, ", tokens, ", ",
                                                 heads, ", dim], for the ", tokens, " tokens of this rank"));
}

absl::StatusOr<AttentionParallel::Levels> AttentionParallel::SplitLevels(const AttentionCall& call) {
  if (call.sequence == nullptr || call.sequence->ranks() != ranks_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sequence of ", call.label, " is split over ", call.sequence ? call.sequence->ranks() : 0,
        " ranks, but the context group has ", ranks_, ": create the SequenceLayout for the group"));
  }
  if (call.sequence->own != rank_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sequence of ", call.label, " has rank ", call.sequence->own, " as its own, but this is rank ",
        rank_, " of the context group: pass SequenceLayout::Parts of this rank"));
  }
  WEFT_RETURN_IF_ERROR(Annotate(Validate(call.mask), call.label));
  if (!(call.scale > 0.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the scale of ", call.label, " is ", call.scale, ": it must be positive"));
  }
  if (call.heads < 1 || call.kv_heads < 1 || call.heads % call.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(call.label, " has ", call.heads, " query heads and ",
                                                   call.kv_heads,
                                                   " KV heads: the KV heads must divide the query heads"));
  }
  const SequenceParts& sequence = *call.sequence;
  Levels levels{.heads = HeadSplit(call.heads, call.kv_heads, inner_size())};
  const int first = sequence.own - inner_rank();
  for (int rank = first; rank < first + inner_size(); ++rank) {
    levels.inner_tokens.push_back(TokenCount(sequence.parts[static_cast<size_t>(rank)]));
  }
  levels.outer = {.problem = {.mask = call.mask,
                              .scale = call.scale,
                              .group = levels.heads.group(),
                              .head_offset = levels.heads.HeadOffset(inner_rank()),
                              .pair_mask = call.pair_mask},
                  .kernels = call.kernels == nullptr ? &DefaultKernels() : call.kernels,
                  .sequence = OuterSequence(call.sequence),
                  .saves = call.saves,
                  .returns_lse = call.returns_lse,
                  .f32_key_gradients = levels.heads.replicates(),
                  .label = call.label,
                  .identity = call.identity};
  return levels;
}

std::shared_ptr<const SequenceParts> AttentionParallel::OuterSequence(
    const std::shared_ptr<const SequenceParts>& sequence) {
  if (!inner_) return sequence;
  if (cached_sequence_ != sequence) {
    cached_outer_sequence_ = std::make_shared<SequenceParts>(OuterParts(*sequence, inner_size()));
    cached_sequence_ = sequence;
  }
  return cached_outer_sequence_;
}

HeadExchange::Partition AttentionParallel::PartitionOf(const Levels& levels, AttentionRole role) {
  return {.tokens = levels.inner_tokens, .heads = levels.heads.Of(role)};
}

absl::StatusOr<LaunchedTensor> AttentionParallel::Launch(const AttentionCall& call, AttentionRole role,
                                                         const Tensor& local) {
  WEFT_ASSIGN_OR_RETURN(const Levels levels, SplitLevels(call));
  WEFT_RETURN_IF_ERROR(CheckLocal(call, role, local));
  LaunchedTensor launched{.local = local};
  Tensor own = local;
  const Work* after = nullptr;
  if (inner_) {
    WEFT_ASSIGN_OR_RETURN(
        PendingTensor exchanged,
        exchange_->GatherTokens(local, PartitionOf(levels, role),
                                levels.outer.Options(absl::StrCat("heads of ", ToAbsl(Name(role))))));
    launched.stages.push_back(std::move(exchanged));
    own = launched.stages.front().result();
    after = launched.stages.front().work();
  }
  WEFT_ASSIGN_OR_RETURN(PendingTensor outer, outer_->Launch(levels.outer, role, own, after));
  if (outer.valid()) launched.stages.push_back(std::move(outer));
  return launched;
}

absl::StatusOr<SequenceAttention::Input> AttentionParallel::OuterInput(LaunchedTensor& launched) const {
  auto stage = launched.stages.begin();
  SequenceAttention::Input input{.own = launched.local};
  if (inner_) {
    WEFT_ASSIGN_OR_RETURN(input.own, stage->Wait());
    ++stage;
  }
  if (stage != launched.stages.end()) input.pending = std::move(*stage);
  return input;
}

absl::StatusOr<AttentionParallel::Result> AttentionParallel::Forward(const AttentionCall& call,
                                                                     LaunchedTensor q, LaunchedTensor k,
                                                                     LaunchedTensor v) {
  WEFT_ASSIGN_OR_RETURN(const Levels levels, SplitLevels(call));
  WEFT_RETURN_IF_ERROR(CheckTogether(call, q.local, k.local, v.local));
  WEFT_ASSIGN_OR_RETURN(SequenceAttention::Input own_q, OuterInput(q));
  WEFT_ASSIGN_OR_RETURN(SequenceAttention::Input own_k, OuterInput(k));
  WEFT_ASSIGN_OR_RETURN(SequenceAttention::Input own_v, OuterInput(v));
  WEFT_ASSIGN_OR_RETURN(Result result,
                        outer_->Forward(levels.outer, std::move(own_q), std::move(own_k), std::move(own_v)));
  if (inner_) WEFT_RETURN_IF_ERROR(GatherResultHeads(call, levels, result));
  if (!call.returns_lse) result.lse = Tensor();
  return result;
}

absl::Status AttentionParallel::GatherResultHeads(const AttentionCall& call, const Levels& levels,
                                                  Result& result) const {
  const HeadExchange::Partition partition = PartitionOf(levels, AttentionRole::kQuery);
  WEFT_ASSIGN_OR_RETURN(PendingTensor out,
                        exchange_->GatherHeads(PendingTensor(result.out), call.heads, partition,
                                               levels.outer.Options("tokens of out")));
  if (call.returns_lse) {
    // The LSE as a view [batch, tokens, heads, 1], for the same exchange as the output.
    const TensorView& view = result.lse.view();
    const TensorView as_tokens = {view.data,
                                  view.dtype,
                                  {view.shape[0], view.shape[2], view.shape[1], 1},
                                  {view.strides[0], view.strides[2], view.strides[1], 1}};
    WEFT_ASSIGN_OR_RETURN(PendingTensor lse,
                          exchange_->GatherHeads(PendingTensor(result.lse.Window(as_tokens)), call.heads,
                                                 partition, levels.outer.Options("tokens of lse")));
    WEFT_ASSIGN_OR_RETURN(const Tensor tokens, lse.Wait());
    const Tensor flat = tokens.Reshape({tokens.dim(0), tokens.dim(1), tokens.dim(2)});
    result.lse = flat.Window(flat.view().Permute({0, 2, 1})).Copy();
  }
  WEFT_ASSIGN_OR_RETURN(result.out, out.Wait());
  return absl::OkStatus();
}

absl::StatusOr<AttentionParallel::Gradients> AttentionParallel::Backward(const AttentionCall& call,
                                                                         Tensors saved, const Tensor& dout) {
  WEFT_ASSIGN_OR_RETURN(const Levels levels, SplitLevels(call));
  WEFT_RETURN_IF_ERROR(CheckLocal(call, AttentionRole::kQuery, dout));
  if (saved.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("backward of ", call.label, " has no saved tensors: set `saves` in its AttentionCall"));
  }
  PendingTensor own_dout(dout);
  if (inner_) {
    WEFT_ASSIGN_OR_RETURN(own_dout, exchange_->GatherTokens(dout, PartitionOf(levels, AttentionRole::kQuery),
                                                            levels.outer.Options("heads of dout")));
  }
  WEFT_ASSIGN_OR_RETURN(const Tensor arrived, own_dout.Wait());
  WEFT_ASSIGN_OR_RETURN(Gradients gradients, outer_->Backward(levels.outer, saved, arrived));
  const auto to_tokens = [&](AttentionRole role, PendingTensor& gradient) {
    const Tensor& like = saved[role == AttentionRole::kQuery ? kSavedQ : kSavedK];
    return GatherGradientHeads(call, levels, role, like.dtype(), gradient);
  };
  // dq first: it is complete, while dk and dv may still have to be waited for.
  WEFT_RETURN_IF_ERROR(to_tokens(AttentionRole::kQuery, gradients.dq));
  WEFT_RETURN_IF_ERROR(to_tokens(AttentionRole::kValue, gradients.dv));
  WEFT_RETURN_IF_ERROR(to_tokens(AttentionRole::kKey, gradients.dk));
  return gradients;
}

absl::Status AttentionParallel::GatherGradientHeads(const AttentionCall& call, const Levels& levels,
                                                    AttentionRole role, DType dtype,
                                                    PendingTensor& gradient) const {
  if (inner_) {
    const int64_t heads = role == AttentionRole::kQuery ? call.heads : call.kv_heads;
    if (gradient.has_finish()) {  // The exchange sends the sum, so the sum is needed now.
      WEFT_ASSIGN_OR_RETURN(Tensor sum, gradient.Wait());
      gradient = PendingTensor(std::move(sum));
    }
    WEFT_ASSIGN_OR_RETURN(
        gradient,
        exchange_->GatherHeads(std::move(gradient), heads, PartitionOf(levels, role),
                               levels.outer.Options(absl::StrCat("tokens of d", ToAbsl(Name(role))))));
  }
  if (gradient.result().dtype() != dtype) {
    gradient.FinishWith([pool = pool_, dtype](const Tensor& wide) { return ConvertTo(*pool, wide, dtype); });
  }
  return absl::OkStatus();
}

}  // namespace weft
