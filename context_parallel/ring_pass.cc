#include "context_parallel/ring_pass.h"

#include <utility>

#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"

namespace weft {

absl::StatusOr<BlockGradients> BlockGradients::Make(BufferPool& pool, const Shape& k, const Shape& v) {
  const int64_t k_count = ElementCount(k);
  const int64_t v_count = ElementCount(v);
  WEFT_ASSIGN_OR_RETURN(Tensor all, PoolTensor(pool, DType::kF32, {k_count + v_count}));
  return BlockGradients{.all = all,
                        .dk = all.Window(all.view().Slice(0, 0, k_count)).Reshape(k),
                        .dv = all.Window(all.view().Slice(0, k_count, v_count)).Reshape(v)};
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
                                         plan_->SourceAt(me_, 1),
                                         call_->Options(role == AttentionRole::kKey ? "k" : "v"), after);
  return PendingTensor(std::move(received), std::move(work), {held});
}

absl::StatusOr<PendingTensor> RingPass::PassGradients(int distance, const Tensor& gradients, const Shape& k,
                                                      const Shape& v) const {
  if (!plan_->AnyGradientsTravel(distance)) return PendingTensor();
  const bool sends = plan_->GradientsTravel(plan_->SourceAt(me_, distance), distance);
  const int64_t count =
      GradientsComeTo(distance + 1) ? GradientCount(plan_->SourceAt(me_, distance + 1), k, v) : 0;
  return ExchangeGradients(sends ? gradients : Tensor(), plan_->RankAt(me_, 1), count,
                           plan_->SourceAt(me_, 1));
}

absl::StatusOr<PendingTensor> RingPass::SendHome(int distance, const Tensor& gradients, const Shape& k,
                                                 const Shape& v) const {
  if (!plan_->AnyGradientsGoHome(distance)) return PendingTensor();
  const int source = plan_->SourceAt(me_, distance);
  const int64_t count = plan_->GradientsGoHome(me_, distance) ? GradientCount(me_, k, v) : 0;
  return ExchangeGradients(plan_->GradientsGoHome(source, distance) ? gradients : Tensor(), source, count,
                           plan_->RankAt(me_, distance));
}

int64_t RingPass::GradientCount(int source, const Shape& k, const Shape& v) const {
  return k[0] * TokenCount(RunsOf(source)) * k[2] * (k[3] + v[3]);
}

absl::StatusOr<PendingTensor> RingPass::ExchangeGradients(const Tensor& sent, int to, int64_t count,
                                                          int from) const {
  WEFT_ASSIGN_OR_RETURN(Tensor received, PoolTensor(*lane_->pool, DType::kF32, {count}));
  const TensorView nothing = received.view().Slice(0, 0, 0);
  Work work = lane_->engine->SendReceive(lane_->lane, sent.defined() ? sent.view() : nothing, to,
                                         received.view(), from, call_->Options("dkv"));
  return PendingTensor(std::move(received), std::move(work), {sent});
}

}  // namespace weft
