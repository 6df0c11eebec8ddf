// One pass over a ring by shift: its hops, as RingPlan says.
//
// Collective: every exchange, by all ranks of the group, in the same order.
// Lifetime: lane and call must outlive it.
#pragma once

#include <memory>
#include <utility>

#include "context_parallel/layouts/ring_plan.h"
#include "context_parallel/schemes/sequence_attention.h"

namespace weft {

// The gradients of a block of keys and values, f32, end to end, so that they travel together.
struct BlockGradients {
  Tensor all;
  Tensor dk, dv;

  static absl::StatusOr<BlockGradients> Make(BufferPool& pool, const Shape& k, const Shape& v);
  // What lies in `all`.
  static BlockGradients Of(const Tensor& all, const Shape& k, const Shape& v);
};

// What a round of gradients brings to a rank.
struct GradientRound {
  Tensor next;  // Of the block that is here at the next distance; without elements if none come.
  Tensor home;  // Of this rank's own block, from the last that sees it; without elements if they do not come.
  // Brings both. Shared, as `home` is waited for long after `next`.
  std::shared_ptr<PendingTensor> arrival;
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
  // Whether this rank's own gradients come home from the rank at `distance`.
  bool GradientsComeHomeFrom(int distance) const { return plan_->GradientsGoHome(me_, distance); }

  // The hop of keys, or values, that ends at `distance`: passes on what is held, the block at the distance
  // before. Nothing once no block goes so far. A block that does not come is one without tokens.
  absl::StatusOr<PendingTensor> Hop(AttentionRole role, int distance, const Tensor& held,
                                    const Work* after) const;

  // Gradients of the block at `distance` go on to the next rank, or home if this is the last that sees it.
  // `k` and `v`: shapes of any block. Nothing is exchanged if no rank's gradients move at this distance.
  absl::StatusOr<GradientRound> MoveGradients(int distance, const Tensor& gradients, const Shape& k,
                                              const Shape& v) const;

 private:
  const TokenRuns& RunsOf(int source) const { return call_->sequence->parts[static_cast<size_t>(source)]; }
  int64_t GradientCount(int source, const Shape& k, const Shape& v) const;

  const LevelLane* lane_;
  const SequenceCall* call_;
  std::shared_ptr<const RingPlan> plan_;
  int me_;
};

}  // namespace weft
