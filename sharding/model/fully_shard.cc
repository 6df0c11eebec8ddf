#include "weft/sharding/fully_shard.h"

#include <algorithm>
#include <utility>

#include <absl/algorithm/container.h>

#include "sharding/model/boundary_casts.h"
#include "sharding/model/make_groups.h"
#include "sharding/model/model_scalars.h"
#include "sharding/model/module_hooks.h"
#include "sharding/plan/group_plan.h"
#include "sharding/plan/mesh_groups.h"
#include "sharding/plan/replicate_buckets.h"
#include "weft/core/status.h"

namespace weft {
namespace {

std::vector<std::shared_ptr<Parameter>> AllParameters(const std::vector<PlannedGroup>& plan) {
  std::vector<std::shared_ptr<Parameter>> parameters;
  for (const PlannedGroup& planned : plan) {
    parameters.insert(parameters.end(), planned.parameters.begin(), planned.parameters.end());
  }
  return parameters;
}

absl::Status CheckReplicas(const ShardingPolicy& policy, const ReplicateBuckets& buckets) {
  const auto replicates = [](const ProcessGroup& group) { return group.size() > 1; };
  if (!policy.shard_optimizer_over_replicas || absl::c_any_of(buckets.groups, replicates)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "shard_optimizer_over_replicas is on, but the mesh has no replicas: switch it off, or give the mesh an "
      "axis replicate of more than one rank");
}

}  // namespace

ShardedModel::ShardedModel(Module& root, ShardingPolicy policy, ResidencyChoice residency,
                           std::unique_ptr<CommContext> context)
    : root_(root),
      policy_(std::move(policy)),
      residency_(std::move(residency)),
      context_(std::move(context)) {}

ShardedModel::~ShardedModel() = default;

absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, absl::Span<Module* const> blocks,
                                                         const DeviceMesh& mesh, CommEngine& engine,
                                                         const ShardingPolicy& wanted,
                                                         const ShardLoader& loader) {
  WEFT_RETURN_IF_ERROR(wanted.Validate());
  WEFT_ASSIGN_OR_RETURN(MeshGroups groups,
                        GroupsOfMesh(mesh, engine.bootstrap().size(), engine.bootstrap().rank()));
  const ShardingPolicy policy = ResolvePrefetch(wanted, engine.bootstrap().node_map(), groups.shard.size());
  WEFT_ASSIGN_OR_RETURN(const std::vector<PlannedGroup> plan, PlanGroups(root, blocks, policy.ignored));
  WEFT_ASSIGN_OR_RETURN(const ReplicateBuckets buckets,
                        PlanReplicateBuckets(AllParameters(plan), policy, groups.shard, groups.replicate));
  WEFT_RETURN_IF_ERROR(CheckReplicas(policy, buckets));
  WEFT_ASSIGN_OR_RETURN(MadeGroups made,
                        MakeGroups(engine, plan, buckets, std::move(groups.shard), policy, loader));
  std::unique_ptr<ShardedModel> model(
      new ShardedModel(root, policy, std::move(made.residency), std::move(made.context)));
  model->groups_ = std::move(made.groups);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(engine.bootstrap(), model->Hook(plan, mesh), engine.options().timeout));
  return model;
}

absl::Status ShardedModel::Hook(absl::Span<const PlannedGroup> plan, const DeviceMesh& mesh) {
  std::vector<int> parents;
  for (const PlannedGroup& planned : plan) {
    modules_.push_back(planned.module);
    parents.push_back(planned.parent);
  }
  std::vector<std::string_view> axes;
  for (const MeshAxis& axis : mesh.axes()) axes.push_back(axis.name);
  WEFT_ASSIGN_OR_RETURN(const ProcessGroup everyone, mesh.Group(axes, context_->engine().bootstrap().rank()));
  WEFT_ASSIGN_OR_RETURN(ModelScalars scalars, ModelScalars::Make(*context_, everyone));
  scalars_ = std::make_unique<ModelScalars>(scalars);
  hooks_ = std::make_unique<Hooks>(*this, ModuleOrder(parents));
  casts_ = std::make_unique<BoundaryCasts>();
  for (size_t group = 0; group < groups_.size() && policy_.cast_forward_inputs; ++group) {
    casts_->CastInputs(*modules_[group], groups_[group]->dtypes().param);
  }
  if (policy_.output_dtype.has_value()) casts_->CastOutputs(root_, *policy_.output_dtype);
  return absl::OkStatus();
}

void ShardedModel::RecordOrderAnew() { hooks_->ForgetOrders(); }

absl::StatusOr<int> ShardedModel::GroupOf(const Module& module) const {
  const auto found = std::find(modules_.begin(), modules_.end(), &module);
  if (found != modules_.end()) return static_cast<int>(found - modules_.begin());
  return absl::InvalidArgumentError(
      absl::StrCat("module '", module.name(), "' is no parameter group of the model sharded at '",
                   groups_.front()->name(), "': name its root, or one of the blocks given to FullyShard"));
}

absl::Status ShardedModel::SetPrefetch(const Module& module, absl::Span<Module* const> ahead,
                                       PrefetchLists& lists) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  std::vector<int> groups;
  for (const Module* next : ahead) {
    WEFT_ASSIGN_OR_RETURN(groups.emplace_back(), GroupOf(*next));
  }
  lists.insert_or_assign(group, std::move(groups));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetModulesToForwardPrefetch(const Module& module,
                                                       absl::Span<Module* const> ahead) {
  return SetPrefetch(module, ahead, forward_prefetch_);
}

absl::Status ShardedModel::SetModulesToBackwardPrefetch(const Module& module,
                                                        absl::Span<Module* const> ahead) {
  return SetPrefetch(module, ahead, backward_prefetch_);
}

absl::Status ShardedModel::SetUnshardInBackward(const Module& module, bool unshard) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  if (unshard) {
    sharded_in_backward_.erase(group);
  } else {
    sharded_in_backward_.insert(group);
  }
  return absl::OkStatus();
}

absl::StatusOr<UnshardHandle> ShardedModel::Unshard(const Module& module) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  ParamGroup& params = *groups_[static_cast<size_t>(group)];
  WEFT_RETURN_IF_ERROR(params.Unshard(Priority::kPrefetch));
  return UnshardHandle(params);
}

absl::Status ShardedModel::Reshard(const Module& module) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  return groups_[static_cast<size_t>(group)]->Reshard();
}

absl::Status UnshardHandle::Wait() {
  if (std::exchange(waited_, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the unshard of parameter group '", group_->name(),
                     "' was waited for already: wait once for each Unshard"));
  }
  return group_->WaitUnshard();
}

void ShardedModel::ZeroGradients() {
  for (const auto& group : groups_) group->ZeroGradients();
  hooks_->ForgetKept();
}

std::vector<ShardView> ShardedModel::Shards() const {
  std::vector<ShardView> shards;
  for (const auto& group : groups_) {
    for (ShardView& shard : group->Shards()) shards.push_back(shard);
  }
  return shards;
}

absl::StatusOr<std::vector<ShardView>> ShardedModel::CurrentShards() {
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->AllGatherUpdates(Priority::kCritical));
  std::vector<ShardView> shards;
  for (const auto& group : groups_) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> current, group->CurrentShards());
    shards.insert(shards.end(), current.begin(), current.end());
  }
  return shards;
}

absl::Status ShardedModel::UpdateShards(const ShardUpdate& update) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    absl::Status updated = update(groups_[group]->Shards());
    if (updated.ok()) updated = hooks_->AfterUpdate(static_cast<int>(group));
    if (!updated.ok()) {
      return Annotate(context_->Fail(updated), absl::StrCat("update of '", groups_[group]->name(), "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::BeginWriting() {
  WEFT_RETURN_IF_ERROR(hooks_->SettleGathers(/*reshard=*/true));
  return context_->FinishBackward();
}

absl::Status ShardedModel::ResetAfterError() {
  WEFT_RETURN_IF_ERROR(context_->ResetAfterError());
  for (const auto& group : groups_) group->ResetAfterError();
  hooks_->ResetAfterError();
  return absl::OkStatus();
}

}  // namespace weft
