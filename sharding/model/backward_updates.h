// Updates of parameter groups in backward: each group is updated when its gradients are reduced, and its
// gradients are freed.
//
// Note [Shards that are written in backward]
// Problem: other ranks read this rank's shards while they gather, or in place, and a backward is still under
//   way. Rule: a group's shards are written when the reduction of its gradients over all ranks has arrived,
//   in the last backward of a step. Why it suffices: every rank of the shard group has contributed its
//   gradients by then. It contributes after its last use of the group in this backward, for which it had the
//   whole parameters, so it neither gathers nor reads the group's shards again before the next forward. The
//   updates are sent, and the groups gathered again, after the backward. Without it: a slower rank would
//   multiply with weights of the next step.
//
// Thread safety: none. Lifetime: groups, context and scalars must outlive it.
#pragma once

#include <memory>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "sharding/group/param_group.h"
#include "sharding/model/model_scalars.h"
#include "sharding/pipeline/comm_context.h"
#include "weft/core/reproducible_sum.h"
#include "weft/sharding/gradient_norm.h"
#include "weft/sharding/shard_view.h"

namespace weft {

class BackwardUpdates : public std::enable_shared_from_this<BackwardUpdates> {
 public:
  using Groups = absl::Span<const std::unique_ptr<ParamGroup>>;

  // A reduction that arrives after its updates are destroyed is an error, which fails the context.
  static std::shared_ptr<BackwardUpdates> Begin(CommContext& context, Groups groups, ShardUpdate update,
                                                std::vector<ClipSet> sets);
  // Later reductions call it no more.
  ~BackwardUpdates();
  BackwardUpdates(const BackwardUpdates&) = delete;
  BackwardUpdates& operator=(const BackwardUpdates&) = delete;

  // Updates the groups whose gradients did not pass through a reduction: no rank called them.
  absl::Status UpdateRest();
  // Norms of the gradients of all updates. Collective: all ranks.
  absl::StatusOr<std::vector<GradientNorm>> Norms(ModelScalars& scalars) const;

 private:
  BackwardUpdates(CommContext& context, Groups groups, ShardUpdate update, std::vector<ClipSet> sets);
  // Updates nothing more on this rank once a gradient is not finite. Other ranks may have gone on: the caller
  // must end the run, whose weights are then of different steps.
  absl::Status Update(size_t group);

  CommContext& context_;
  const Groups groups_;
  const ShardUpdate update_;
  const std::vector<ClipSet> sets_;
  std::vector<ReproducibleSum> squares_;  // By set.
  std::vector<bool> updated_;             // By group.
};

}  // namespace weft
