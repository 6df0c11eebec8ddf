#include "context_parallel/schemes/two_level_attention.h"

#include <utility>

#include "context_parallel/layouts/run_slices.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// What one tensor alone does not show.
absl::Status CheckTogether(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (k.dim(0) == q.dim(0) && v.dim(0) == q.dim(0) && k.dim(3) == q.dim(3)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "q, k and v of ", call.label, " are ", ToString(q.shape()), ", ", ToString(k.shape()), " and ",
      ToString(v.shape()), ": all must have the same batch, queries and keys the same head size"));
}

}  // namespace

TwoLevelAttention::TwoLevelAttention(BufferPool& pool, int ranks, int rank, std::optional<LevelLane> inner,
                                     std::unique_ptr<SequenceAttention> outer)
    : pool_(&pool), ranks_(ranks), rank_(rank), inner_(inner), outer_(std::move(outer)) {
  if (inner_) exchange_.emplace(*inner_->engine, *inner_->pool, inner_->lane);
}

absl::Status TwoLevelAttention::CheckLocal(const AttentionCall& call, AttentionRole role,
                                           const Tensor& local) const {
  const int64_t heads = role == AttentionRole::kQuery ? call.heads : call.kv_heads;
  const int64_t tokens = TokenCount(call.sequence->runs());
  if (local.shape().size() == 4 && local.dim(1) == tokens && local.dim(2) == heads) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(Name(role)), " of ", call.label, " is ",
                                                 ToString(local.shape()), ": expected [batch, ", tokens, ", ",
                                                 heads, ", dim], this rank's ", tokens,
                                                 " tokens of the sequence; queries and keys have the same"));
}

absl::StatusOr<TwoLevelAttention::Levels> TwoLevelAttention::LevelsOf(const AttentionCall& call) {
  if (call.sequence == nullptr || call.sequence->ranks() != ranks_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the sequence of ", call.label, " is split over ", call.sequence ? call.sequence->ranks() : 0,
        " ranks, the context group has ", ranks_, ": lay it out with SequenceLayout over the group"));
  }
  if (call.sequence->own != rank_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sequence of ", call.label, " is that of rank ", call.sequence->own,
                     ", this is rank ", rank_, " of the context group: take its own SequenceLayout::Parts"));
  }
  WEFT_RETURN_IF_ERROR(Annotate(Validate(call.mask), call.label));
  if (!(call.scale > 0.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the scale of ", call.label, " is ", call.scale, ": scores need a positive one"));
  }
  if (call.heads < 1 || call.kv_heads < 1 || call.heads % call.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(call.label, " has ", call.heads, " query heads and ",
                                                   call.kv_heads,
                                                   " kv heads: the second must divide the first"));
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
                              .head_offset = levels.heads.HeadOffset(inner_rank())},
                  .sequence = OuterOf(call.sequence),
                  .saves = call.saves,
                  .returns_lse = call.returns_lse,
                  .f32_key_gradients = levels.heads.replicates(),
                  .label = call.label,
                  .identity = call.identity};
  return levels;
}

std::shared_ptr<const SequenceParts> TwoLevelAttention::OuterOf(
    const std::shared_ptr<const SequenceParts>& sequence) {
  if (!inner_) return sequence;
  if (joined_from_ != sequence) {
    joined_ = std::make_shared<SequenceParts>(OuterParts(*sequence, inner_size()));
    joined_from_ = sequence;
  }
  return joined_;
}

HeadExchange::Cut TwoLevelAttention::CutOf(const Levels& levels, AttentionRole role) {
  return {.tokens = levels.inner_tokens, .heads = levels.heads.Of(role)};
}

absl::StatusOr<LaunchedTensor> TwoLevelAttention::Launch(const AttentionCall& call, AttentionRole role,
                                                         const Tensor& local) {
  WEFT_ASSIGN_OR_RETURN(const Levels levels, LevelsOf(call));
  WEFT_RETURN_IF_ERROR(CheckLocal(call, role, local));
  LaunchedTensor launched{.local = local};
  Tensor own = local;
  const Work* after = nullptr;
  if (inner_) {
    WEFT_ASSIGN_OR_RETURN(
        PendingTensor exchanged,
        exchange_->ToHeads(local, CutOf(levels, role),
                           levels.outer.Options(absl::StrCat("heads of ", ToAbsl(Name(role))))));
    launched.stages.push_back(std::move(exchanged));
    own = launched.stages.front().result();
    after = launched.stages.front().work();
  }
  WEFT_ASSIGN_OR_RETURN(PendingTensor outer, outer_->Launch(levels.outer, role, own, after));
  if (outer.valid()) launched.stages.push_back(std::move(outer));
  return launched;
}

// The input of the outer level. What was launched must stay until that is done with it.
absl::StatusOr<SequenceAttention::Input> TwoLevelAttention::Arrived(LaunchedTensor& launched) const {
  auto stage = launched.stages.begin();
  SequenceAttention::Input input{.own = launched.local};
  if (inner_) {
    WEFT_ASSIGN_OR_RETURN(input.own, stage->Wait());
    ++stage;
  }
  if (stage != launched.stages.end()) input.pending = std::move(*stage);
  return input;
}

absl::StatusOr<AttentionParallel::Result> TwoLevelAttention::Forward(const AttentionCall& call,
                                                                     LaunchedTensor q, LaunchedTensor k,
                                                                     LaunchedTensor v) {
  WEFT_ASSIGN_OR_RETURN(const Levels levels, LevelsOf(call));
  WEFT_RETURN_IF_ERROR(CheckTogether(call, q.local, k.local, v.local));
  WEFT_ASSIGN_OR_RETURN(SequenceAttention::Input own_q, Arrived(q));
  WEFT_ASSIGN_OR_RETURN(SequenceAttention::Input own_k, Arrived(k));
  WEFT_ASSIGN_OR_RETURN(SequenceAttention::Input own_v, Arrived(v));
  WEFT_ASSIGN_OR_RETURN(Result result,
                        outer_->Forward(levels.outer, std::move(own_q), std::move(own_k), std::move(own_v)));
  if (inner_) WEFT_RETURN_IF_ERROR(ResultToTokens(call, levels, result));
  if (!call.returns_lse) result.lse = Tensor();
  return result;
}

absl::Status TwoLevelAttention::ResultToTokens(const AttentionCall& call, const Levels& levels,
                                               Result& result) const {
  const HeadExchange::Cut cut = CutOf(levels, AttentionRole::kQuery);
  WEFT_ASSIGN_OR_RETURN(PendingTensor out, exchange_->ToTokens(PendingTensor(result.out), call.heads, cut,
                                                               levels.outer.Options("tokens of out")));
  if (call.returns_lse) {
    // As [batch, tokens, heads, 1].
    const TensorView& view = result.lse.view();
    const TensorView as_tokens = {view.data,
                                  view.dtype,
                                  {view.shape[0], view.shape[2], view.shape[1], 1},
                                  {view.strides[0], view.strides[2], view.strides[1], 1}};
    WEFT_ASSIGN_OR_RETURN(PendingTensor lse,
                          exchange_->ToTokens(PendingTensor(result.lse.Window(as_tokens)), call.heads, cut,
                                              levels.outer.Options("tokens of lse")));
    WEFT_ASSIGN_OR_RETURN(const Tensor tokens, lse.Wait());
    const Tensor flat = tokens.Reshape({tokens.dim(0), tokens.dim(1), tokens.dim(2)});
    result.lse = flat.Window(flat.view().Permute({0, 2, 1})).Copy();
  }
  WEFT_ASSIGN_OR_RETURN(result.out, out.Wait());
  return absl::OkStatus();
}

absl::StatusOr<AttentionParallel::Gradients> TwoLevelAttention::Backward(const AttentionCall& call,
                                                                         Tensors saved, const Tensor& dout) {
  WEFT_ASSIGN_OR_RETURN(const Levels levels, LevelsOf(call));
  WEFT_RETURN_IF_ERROR(CheckLocal(call, AttentionRole::kQuery, dout));
  if (saved.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("backward of ", call.label, " without what forward saved: set `saves` in its call"));
  }
  PendingTensor own_dout(dout);
  if (inner_) {
    WEFT_ASSIGN_OR_RETURN(own_dout, exchange_->ToHeads(dout, CutOf(levels, AttentionRole::kQuery),
                                                       levels.outer.Options("heads of dout")));
  }
  WEFT_ASSIGN_OR_RETURN(const Tensor arrived, own_dout.Wait());
  WEFT_ASSIGN_OR_RETURN(Gradients gradients, outer_->Backward(levels.outer, saved, arrived));
  const auto to_tokens = [&](AttentionRole role, PendingTensor& gradient) {
    const Tensor& like = saved[role == AttentionRole::kQuery ? kSavedQ : kSavedK];
    return GradientToTokens(call, levels, role, like.dtype(), gradient);
  };
  // Queries' first: they are complete, while those of keys and values may have to be waited for.
  WEFT_RETURN_IF_ERROR(to_tokens(AttentionRole::kQuery, gradients.dq));
  WEFT_RETURN_IF_ERROR(to_tokens(AttentionRole::kValue, gradients.dv));
  WEFT_RETURN_IF_ERROR(to_tokens(AttentionRole::kKey, gradients.dk));
  return gradients;
}

absl::Status TwoLevelAttention::GradientToTokens(const AttentionCall& call, const Levels& levels,
                                                 AttentionRole role, DType dtype,
                                                 PendingTensor& gradient) const {
  if (inner_) {
    const int64_t heads = role == AttentionRole::kQuery ? call.heads : call.kv_heads;
    if (gradient.finishes()) {  // The sum goes on, and is made here.
      WEFT_ASSIGN_OR_RETURN(Tensor sum, gradient.Wait());
      gradient = PendingTensor(std::move(sum));
    }
    WEFT_ASSIGN_OR_RETURN(
        gradient, exchange_->ToTokens(std::move(gradient), heads, CutOf(levels, role),
                                      levels.outer.Options(absl::StrCat("tokens of d", ToAbsl(Name(role))))));
  }
  if (gradient.result().dtype() != dtype) {
    gradient.FinishWith([pool = pool_, dtype](const Tensor& wide) { return InDType(*pool, wide, dtype); });
  }
  return absl::OkStatus();
}

}  // namespace weft
