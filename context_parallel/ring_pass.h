// One pass over a ring by shift: its hops, as RingPlan says.
//
// Collective: every exchange, by all ranks of the group, in the same order.
// Lifetime: lane and call must outlive it.
#pragma once

#include <memory>
#include <utility>

#include "context_parallel/ring_plan.h"
#include "context_parallel/sequence_attention.h"

namespace weft {

// The gradients of a block of keys and values, f32, end to end, so that they travel together.
struct BlockGradients {
  Tensor all;
  Tensor dk, dv;

  static absl::StatusOr<BlockGradients> Make(BufferPool& pool, const Shape& k, const Shape& v);
};

class RingPass {
 public:
  // `plan`: of the call's mask and sequence.
  RingPass(const LevelLane& lane, const SequenceCall& call, std::shared_ptr<const RingPlan> plan)
      : lane_(&lane), call_(&call), plan_(std::move(plan)), me_(lane.me()) {}

  int hops() const { return plan_->hops(); }
  // Of the block that is here at `distance`: its tokens, whether this rank sees any of them, and whether
  // gradients come with it from the rank before.
  const TokenRuns& RunsAt(int distance) const { return RunsOf(plan_->SourceAt(me_, distance)); }
  bool SeesAt(int distance) const { return plan_->Sees(plan_->SourceAt(me_, distance), distance); }
  bool GradientsComeTo(int distance) const {
    return plan_->GradientsTravel(plan_->SourceAt(me_, distance), distance - 1);
  }

  // The hop of keys, or values, that ends at `distance`: passes on what is held, the block at the distance
  // before. Nothing once no block goes so far. A block that does not come is one without tokens.
  absl::StatusOr<PendingTensor> Hop(AttentionRole role, int distance, const Tensor& held,
                                    const Work* after) const;

  // Gradients of the block at `distance` go on to the next rank, if they do; those for the next block come.
  // Nothing if no gradients travel from this distance. `k` and `v`: shapes of any block.
  absl::StatusOr<PendingTensor> PassGradients(int distance, const Tensor& gradients, const Shape& k,
                                              const Shape& v) const;
  // Gradients of the block at `distance` go home, if this is the last rank that sees it, and so may this
  // rank's own. Nothing if none go home from this distance; without elements if this rank's do not.
  absl::StatusOr<PendingTensor> SendHome(int distance, const Tensor& gradients, const Shape& k,
                                         const Shape& v) const;

 private:
  const TokenRuns& RunsOf(int source) const { return call_->sequence->parts[static_cast<size_t>(source)]; }
  int64_t GradientCount(int source, const Shape& k, const Shape& v) const;
  absl::StatusOr<PendingTensor> ExchangeGradients(const Tensor& sent, int to, int64_t count, int from) const;

  const LevelLane* lane_;
  const SequenceCall* call_;
  std::shared_ptr<const RingPlan> plan_;
  int me_;
};

}  // namespace weft
