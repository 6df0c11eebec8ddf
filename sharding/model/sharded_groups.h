// Parameter groups of a model, sharded over a mesh: memory, schedule, gradients and updates.
//
// A client describes the groups, calls the schedule from its own hooks, and reads gradients and writes
// shards through Shards or UpdateShards. ShardedModel is the client for trees of modules.
//
// Thread safety: none; one thread drives the groups.
// Collective: Create, ClipGradNorms, AllReduceScalars, CurrentShards, UpdateShards, BeginWriting and
//   ResetAfterError, by all ranks in one order.
// Lifetime: the engine must outlive the groups.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "sharding/group/param_group.h"
#include "sharding/model/group_schedule.h"
#include "sharding/model/model_scalars.h"
#include "weft/mesh/device_mesh.h"
#include "weft/sharding/gradient_norm.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"
#include "weft/sharding/shard_view.h"

namespace weft {

class ShardedGroups {
 public:
  // Loads every shard through `loader`. All ranks agree on the outcome. REQUIRES: `groups` has the root's
  // group first and each group after its parent, depth first; no parameter is in two groups.
  // Errors: those of FullyShard, except for its checks of blocks and of parameters in two groups.
  static absl::StatusOr<std::unique_ptr<ShardedGroups>> Create(CommEngine& engine, const DeviceMesh& mesh,
                                                               std::vector<GroupMembers> groups,
                                                               const ShardingPolicy& policy,
                                                               const ShardLoader& loader);

  GroupSchedule& schedule() { return *schedule_; }
  CommContext& context() { return *context_; }
  absl::Span<const std::unique_ptr<ParamGroup>> groups() const { return groups_; }
  ParamGroup& group(int number) { return *groups_[static_cast<size_t>(number)]; }
  // The policy with its prefetch depth resolved.
  const ShardingPolicy& policy() const { return policy_; }
  const ResidencyChoice& residency() const { return residency_; }

  // See the functions of the same names of ShardedModel.
  absl::Status CheckGradientsReduced() const;
  std::vector<ShardView> Shards() const;
  absl::StatusOr<std::vector<ShardView>> CurrentShards();
  absl::Status UpdateShards(const ShardUpdate& update);
  absl::Status BeginWriting();
  void ZeroGradients();
  absl::StatusOr<std::vector<GradientNorm>> ClipGradNorms(absl::Span<const ClipSet> sets, NormType type);
  absl::Status AllReduceScalars(const std::string& label, void* values, DType dtype, int64_t count,
                                ReduceOp op);
  absl::Status ResetAfterError();

 private:
  ShardedGroups(ShardingPolicy policy, ResidencyChoice residency, std::unique_ptr<CommContext> context)
      : policy_(std::move(policy)), residency_(std::move(residency)), context_(std::move(context)) {}
  absl::Status CreateGroups(std::vector<GroupSpec> specs, std::vector<SharedBlock> images,
                            const ShardLoader& loader);
  absl::Status CreateSchedule(const DeviceMesh& mesh, std::vector<PassEvent> module_order);
  // By set: this rank's reduced gradients, without those that another replica counts.
  std::vector<std::vector<absl::Span<const float>>> GradientsToCount(absl::Span<const ClipSet> sets) const;

  const ShardingPolicy policy_;
  const ResidencyChoice residency_;
  std::unique_ptr<CommContext> context_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::unique_ptr<ModelScalars> scalars_;
  std::unique_ptr<GroupSchedule> schedule_;
};

}  // namespace weft
