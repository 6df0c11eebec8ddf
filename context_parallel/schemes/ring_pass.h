// Exchanges of one forward or backward pass over a ring by shift, according to a RingPlan.
//
// Collective: every exchange, by all ranks of the group, in the same order.
// Lifetime: lane and call must outlive it.
#pragma once

#include <memory>
#include <utility>

#include "context_parallel/layouts/ring_plan.h"
#include "context_parallel/schemes/sequence_attention.h"

namespace weft {

// Gradients of a block of keys and values in f32, end to end in one tensor, so that one message sends both.
struct BlockGradients {
  Tensor all;
  Tensor dk, dv;

  static absl::StatusOr<BlockGradients> Make(BufferPool& pool, const Shape& k, const Shape& v);
  // Views of `all`.
  static BlockGradients Of(const Tensor& all, const Shape& k, const Shape& v);
};

// Gradients that a rank receives in one round.
struct GradientRound {
  // Gradients of the block that is here at the next distance; empty if none are received.
  Tensor next_block;
  // Gradients of this rank's own block, from the last rank that attends to it; empty if none are received.
  Tensor own_block;
  // The exchange of both. Shared, since own_block is waited for long after next_block.
  std::shared_ptr<PendingTensor> pending;
};

class RingPass {
 public:
  // `plan`: of the call's mask and sequence.
  RingPass(const LevelLane& lane, const SequenceCall& call, std::shared_ptr<const RingPlan> plan)
      : lane_(&lane), call_(&call), plan_(std::move(plan)), rank_(lane.rank()) {}

  int hops() const { return plan_->hops(); }
  // The block that is here at `distance`: its tokens, whether this rank attends to it, and whether the
  // previous rank sends gradients of it.
  const TokenRuns& RunsAt(int distance) const { return RunsOf(plan_->OwnerAt(rank_, distance)); }
  bool AttendsAt(int distance) const { return plan_->Attends(plan_->OwnerAt(rank_, distance), distance); }
  bool ReceivesGradientsAt(int distance) const {
    return plan_->PassesGradientsOn(plan_->OwnerAt(rank_, distance), distance - 1);
  }
  // True if the rank at `distance` returns the gradients of this rank's own block.
  bool ReceivesOwnGradientsAt(int distance) const { return plan_->ReturnsGradients(rank_, distance); }

  // The hop of keys, or of values, that ends at `distance`. `held`: the block at the previous distance, which
  // is sent on. Returns an invalid PendingTensor if no block moves that far. If no block arrives at this
  // rank, the result has no tokens.
  absl::StatusOr<PendingTensor> Hop(AttentionRole role, int distance, const Tensor& held,
                                    const Work* after) const;

  // Sends the gradients of the block at `distance` to the next rank, or to their owner if this is the last
  // rank that attends to the block. `k` and `v`: shapes of any block. Exchanges nothing if no rank sends
  // gradients at this distance.
  absl::StatusOr<GradientRound> ExchangeGradients(int distance, const Tensor& gradients, const Shape& k,
                                                  const Shape& v) const;

 private:
  const TokenRuns& RunsOf(int owner) const { return call_->sequence->parts[static_cast<size_t>(owner)]; }
  int64_t GradientCount(int owner, const Shape& k, const Shape& v) const;

  const LevelLane* lane_;
  const SequenceCall* call_;
  std::shared_ptr<const RingPlan> plan_;
  int rank_;
};

}  // namespace weft
