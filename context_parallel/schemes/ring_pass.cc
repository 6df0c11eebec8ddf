#include "context_parallel/schemes/ring_pass.h"

#include <utility>

#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {

absl::StatusOr<BlockGradients> BlockGradients::Make(BufferPool& pool, const Shape& k, const Shape& v) {
  WEFT_ASSIGN_OR_RETURN(const Tensor all, PoolTensor(pool, DType::kF32, {ElementCount(k) + ElementCount(v)}));
  return Of(all, k, v);
}

BlockGradients BlockGradients::Of(const Tensor& all, const Shape& k, const Shape& v) {
  const int64_t k_count = ElementCount(k);
  return {.all = all,
          .dk = all.Window(all.view().Slice(0, 0, k_count)).Reshape(k),
          .dv = all.Window(all.view().Slice(0, k_count, ElementCount(v))).Reshape(v)};
}

absl::StatusOr<PendingTensor> RingPass::Hop(AttentionRole role, int distance, const Tensor& held,
                                            const Work* after) const {
  if (distance > hops()) return PendingTensor();
  const int owner = plan_->OwnerAt(rank_, distance);
  Shape shape = held.shape();
  shape[1] = plan_->Reaches(owner, distance) ? TokenCount(RunsOf(owner)) : 0;
  WEFT_ASSIGN_OR_RETURN(Tensor received, PoolTensor(*lane_->pool, held.dtype(), shape));
  const bool sends = plan_->Reaches(plan_->OwnerAt(rank_, distance - 1), distance);
  const TensorView sent = sends ? held.view() : held.view().Slice(1, 0, 0);
  Work work = lane_->engine->SendReceive(lane_->lane, sent, plan_->RankAt(rank_, 1), received.view(),
                                         plan_->OwnerAt(rank_, 1), call_->Options(Name(role)), after);
  return PendingTensor(std::move(received), std::move(work), {held});
}

absl::StatusOr<GradientRound> RingPass::ExchangeGradients(int distance, const Tensor& gradients,
                                                          const Shape& k, const Shape& v) const {
  if (!plan_->SendsAnyGradients(distance)) return GradientRound();
  const int owner = plan_->OwnerAt(rank_, distance);
  const auto index = [](int rank) { return static_cast<size_t>(rank); };
  const auto ranks = index(lane_->size());
  std::vector<TensorView> sends(ranks);
  if (plan_->PassesGradientsOn(owner, distance)) sends[index(plan_->RankAt(rank_, 1))] = gradients.view();
  if (plan_->ReturnsGradients(owner, distance)) sends[index(owner)] = gradients.view();

  // A rank may receive from two ranks: from the previous one, and gradients of its own block. At the last
  // distance the previous rank sends none.
  const int64_t next_count =
      ReceivesGradientsAt(distance + 1) ? GradientCount(plan_->OwnerAt(rank_, distance + 1), k, v) : 0;
  const int64_t own_count = ReceivesOwnGradientsAt(distance) ? GradientCount(rank_, k, v) : 0;
  GradientRound round;
  WEFT_ASSIGN_OR_RETURN(round.next_block, PoolTensor(*lane_->pool, DType::kF32, {next_count}));
  WEFT_ASSIGN_OR_RETURN(round.own_block, PoolTensor(*lane_->pool, DType::kF32, {own_count}));
  std::vector<TensorView> receives(ranks);
  if (next_count > 0) receives[index(plan_->OwnerAt(rank_, 1))] = round.next_block.view();
  if (own_count > 0) receives[index(plan_->RankAt(rank_, distance))] = round.own_block.view();
  Work work = lane_->engine->AllToAll(lane_->lane, sends, receives, DType::kF32, call_->Options("dkv"));
  round.pending = std::make_shared<PendingTensor>(round.next_block, std::move(work),
                                                  std::vector<Tensor>{gradients, round.own_block});
  return round;
}

int64_t RingPass::GradientCount(int owner, const Shape& k, const Shape& v) const {
  return k[0] * TokenCount(RunsOf(owner)) * k[2] * (k[3] + v[3]);
}

}  // namespace weft
