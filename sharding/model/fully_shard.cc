#include "weft/sharding/fully_shard.h"

#include <algorithm>
#include <utility>

#include "sharding/model/boundary_casts.h"
#include "sharding/model/group_plan.h"
#include "sharding/model/module_hooks.h"
#include "sharding/model/sharded_groups.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, absl::Span<Module* const> blocks,
                                                         const DeviceMesh& mesh, CommEngine& engine,
                                                         const ShardingPolicy& policy,
                                                         const ShardLoader& loader) {
  WEFT_ASSIGN_OR_RETURN(std::vector<ModuleGroup> plan, PlanGroups(root, blocks, policy.ignored));
  std::vector<Module*> modules;
  std::vector<GroupMembers> members;
  for (ModuleGroup& group : plan) {
    modules.push_back(group.module);
    members.push_back(std::move(group.members));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ShardedGroups> groups,
                        ShardedGroups::Create(engine, mesh, std::move(members), policy, loader));
  return std::unique_ptr<ShardedModel>(new ShardedModel(root, std::move(modules), std::move(groups)));
}

ShardedModel::ShardedModel(Module& root, std::vector<Module*> modules, std::unique_ptr<ShardedGroups> groups)
    : root_(root),
      modules_(std::move(modules)),
      groups_(std::move(groups)),
      hooks_(std::make_unique<ModuleHooks>(*groups_, modules_)),
      casts_(std::make_unique<BoundaryCasts>()) {
  for (size_t i = 0; i < modules_.size() && policy().cast_forward_inputs; ++i) {
    casts_->CastInputs(*modules_[i], groups_->groups()[i]->dtypes().param);
  }
  if (policy().output_dtype.has_value()) casts_->CastOutputs(root_, *policy().output_dtype);
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::SetRequiresGradientSync(bool sync) { groups_->schedule().switches().gradient_sync = sync; }

void ShardedModel::SetRequiresAllReduce(bool all_reduce) {
  groups_->schedule().switches().all_reduce = all_reduce;
}

void ShardedModel::SetIsLastBackward(bool last) { groups_->schedule().switches().is_last_backward = last; }

void ShardedModel::SetReshardAfterForward(bool reshard) {
  groups_->schedule().switches().reshard_after_forward = reshard;
}

void ShardedModel::SetReshardAfterBackward(bool reshard) {
  groups_->schedule().switches().reshard_after_backward = reshard;
}

absl::StatusOr<int> ShardedModel::GroupOf(const Module& module) const {
  const auto found = std::find(modules_.begin(), modules_.end(), &module);
  if (found != modules_.end()) return static_cast<int>(found - modules_.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      "module '", module.name(), "' is no parameter group of the model sharded at '",
      groups_->group(kRootGroup).name(), "': name its root, or one of the blocks given to FullyShard"));
}

absl::StatusOr<ParamGroup*> ShardedModel::ParamGroupOf(const Module& module) const {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  return &groups_->group(group);
}

absl::StatusOr<std::vector<int>> ShardedModel::GroupsOf(absl::Span<Module* const> modules) const {
  std::vector<int> groups;
  for (const Module* module : modules) {
    WEFT_ASSIGN_OR_RETURN(groups.emplace_back(), GroupOf(*module));
  }
  return groups;
}

absl::Status ShardedModel::SetModulesToForwardPrefetch(const Module& module, absl::Span<Module* const> next) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  WEFT_ASSIGN_OR_RETURN(std::vector<int> groups, GroupsOf(next));
  groups_->schedule().SetForwardPrefetch(group, std::move(groups));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetModulesToBackwardPrefetch(const Module& module,
                                                        absl::Span<Module* const> next) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  WEFT_ASSIGN_OR_RETURN(std::vector<int> groups, GroupsOf(next));
  groups_->schedule().SetBackwardPrefetch(group, std::move(groups));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetUnshardInBackward(const Module& module, bool unshard) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  groups_->schedule().SetUnshardInBackward(group, unshard);
  return absl::OkStatus();
}

absl::Status ShardedModel::SetCustomAllGather(const Module& module, CustomAllGather all_gather) {
  WEFT_ASSIGN_OR_RETURN(ParamGroup * group, ParamGroupOf(module));
  group->SetCustomAllGather(std::move(all_gather));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetCustomReduceScatter(const Module& module, CustomReduceScatter reduce_scatter) {
  WEFT_ASSIGN_OR_RETURN(ParamGroup * group, ParamGroupOf(module));
  group->SetCustomReduceScatter(std::move(reduce_scatter));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetGradientHook(const Module& module, GradientHook hook) {
  WEFT_ASSIGN_OR_RETURN(ParamGroup * group, ParamGroupOf(module));
  group->SetGradientHook(std::move(hook));
  return absl::OkStatus();
}

void ShardedModel::RecordOrderAgain() { groups_->schedule().ForgetOrders(); }

void ShardedModel::SetScheduleObserver(ScheduleObserver observer) {
  groups_->schedule().SetObserver(std::move(observer));
}

absl::StatusOr<UnshardHandle> ShardedModel::Unshard(const Module& module) {
  WEFT_ASSIGN_OR_RETURN(ParamGroup * group, ParamGroupOf(module));
  WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kPrefetch));
  return UnshardHandle(*group);
}

absl::Status ShardedModel::Reshard(const Module& module) {
  WEFT_ASSIGN_OR_RETURN(ParamGroup * group, ParamGroupOf(module));
  return group->Reshard();
}

absl::Status UnshardHandle::Wait() {
  if (std::exchange(waited_, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the unshard of parameter group '", group_->name(),
                     "' was waited for already: wait once for each Unshard"));
  }
  return group_->WaitUnshard();
}

void ShardedModel::ZeroGradients() { groups_->ZeroGradients(); }

absl::StatusOr<GradientNorm> ShardedModel::ClipGradNorm(double max_norm, NormType type) {
  const ClipSet all{[](const Parameter&) { return true; }, max_norm};
  WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> norms, ClipGradNorms({all}, type));
  return norms[0];
}

absl::StatusOr<std::vector<GradientNorm>> ShardedModel::ClipGradNorms(absl::Span<const ClipSet> sets,
                                                                      NormType type) {
  return groups_->ClipGradNorms(sets, type);
}

absl::Status ShardedModel::AllReduceScalars(const std::string& label, void* values, DType dtype,
                                            int64_t count, ReduceOp op) {
  return groups_->AllReduceScalars(label, values, dtype, count, op);
}

absl::Status ShardedModel::CheckGradientsReduced() const { return groups_->CheckGradientsReduced(); }

std::vector<ShardView> ShardedModel::Shards() const { return groups_->Shards(); }

absl::StatusOr<std::vector<ShardView>> ShardedModel::CurrentShards() { return groups_->CurrentShards(); }

absl::Status ShardedModel::UpdateShards(const ShardUpdate& update) { return groups_->UpdateShards(update); }

absl::Status ShardedModel::BeginWriting() { return groups_->BeginWriting(); }

const ShardingPolicy& ShardedModel::policy() const { return groups_->policy(); }

const ResidencyChoice& ShardedModel::residency() const { return groups_->residency(); }

ShardingCounters ShardedModel::counters() const { return groups_->context().state().counters(); }

MemoryPeaks ShardedModel::peaks() const { return groups_->context().memory().peaks(); }

void ShardedModel::ResetPeaks() { groups_->context().memory().ResetPeaks(); }

absl::Status ShardedModel::ResetAfterError() { return groups_->ResetAfterError(); }

}  // namespace weft
