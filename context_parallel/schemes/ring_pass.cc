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
  const int source = plan_->SourceAt(me_, distance);
  Shape shape = held.shape();
  shape[1] = plan_->Travels(source, distance) ? TokenCount(RunsOf(source)) : 0;
  WEFT_ASSIGN_OR_RETURN(Tensor received, PoolTensor(*lane_->pool, held.dtype(), shape));
  const bool sends = plan_->Travels(plan_->SourceAt(me_, distance - 1), distance);
  const TensorView sent = sends ? held.view() : held.view().Slice(1, 0, 0);
  Work work = lane_->engine->SendReceive(lane_->lane, sent, plan_->RankAt(me_, 1), received.view(),
                                         plan_->SourceAt(me_, 1), call_->Options(Name(role)), after);
  return PendingTensor(std::move(received), std::move(work), {held});
}

absl::StatusOr<GradientRound> RingPass::MoveGradients(int distance, const Tensor& gradients, const Shape& k,
                                                      const Shape& v) const {
  if (!plan_->AnyGradientsMove(distance)) return GradientRound();
  const int source = plan_->SourceAt(me_, distance);
  const auto index = [](int rank) { return static_cast<size_t>(rank); };
  const auto ranks = index(lane_->size());
  std::vector<TensorView> sends(ranks);
  if (plan_->GradientsTravel(source, distance)) sends[index(plan_->RankAt(me_, 1))] = gradients.view();
  if (plan_->GradientsGoHome(source, distance)) sends[index(source)] = gradients.view();

  // Before the last distance they come from two ranks; at the last nothing goes on.
  const int64_t next =
      GradientsComeTo(distance + 1) ? GradientCount(plan_->SourceAt(me_, distance + 1), k, v) : 0;
  const int64_t home = GradientsComeHomeFrom(distance) ? GradientCount(me_, k, v) : 0;
  GradientRound round;
  WEFT_ASSIGN_OR_RETURN(round.next, PoolTensor(*lane_->pool, DType::kF32, {next}));
  WEFT_ASSIGN_OR_RETURN(round.home, PoolTensor(*lane_->pool, DType::kF32, {home}));
  std::vector<TensorView> receives(ranks);
  if (next > 0) receives[index(plan_->SourceAt(me_, 1))] = round.next.view();
  if (home > 0) receives[index(plan_->RankAt(me_, distance))] = round.home.view();
  Work work = lane_->engine->AllToAll(lane_->lane, sends, receives, DType::kF32, call_->Options("dkv"));
  round.arrival = std::make_shared<PendingTensor>(round.next, std::move(work),
                                                  std::vector<Tensor>{gradients, round.home});
  return round;
}

int64_t RingPass::GradientCount(int source, const Shape& k, const Shape& v) const {
  return k[0] * TokenCount(RunsOf(source)) * k[2] * (k[3] + v[3]);
}

}  // namespace weft
