#include "weft/sharding/fully_shard.h"

#include <utility>

#include "sharding/group/param_group.h"
#include "sharding/model/boundary_casts.h"
#include "sharding/model/group_plan.h"
#include "sharding/model/module_hooks.h"
#include "sharding/plan/execution_order.h"
#include "weft/core/status.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {
namespace {

absl::Status CheckMasters(const GroupMembers& group, const ShardingPolicy& policy) {
  for (const std::shared_ptr<Parameter>& parameter : group.parameters) {
    if (policy.DTypesOf(*parameter).master == DType::kF32) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", parameter->name, "' of group '", group.name,
        "' has a master that is not f32: modules, optimizers and checkpoints of a sharded model take fp32 "
        "masters; shard it with ShardedGroups, or leave ParameterDTypes::master as it is"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ModuleGroup>> PlanModules(Module& root, const ModuleBlocks& blocks,
                                                     const ShardingPolicy& policy) {
  WEFT_ASSIGN_OR_RETURN(std::vector<ModuleGroup> plan, PlanGroups(root, blocks, policy.ignored));
  for (const ModuleGroup& group : plan) WEFT_RETURN_IF_ERROR(CheckMasters(group.members, policy));
  return plan;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, const ModuleBlocks& blocks,
                                                         const DeviceMesh& mesh, CommEngine& engine,
                                                         const ShardingPolicy& policy,
                                                         const ShardLoader& loader) {
  absl::StatusOr<std::vector<ModuleGroup>> plan = PlanModules(root, blocks, policy);
  // Peers without an error are in the agreement of ShardedGroups::Create.
  if (!plan.ok()) return AgreeOnStatus(engine.bootstrap(), plan.status(), engine.timeout());
  std::vector<std::vector<Module*>> modules;
  std::vector<GroupMembers> members;
  for (ModuleGroup& group : *plan) {
    modules.push_back(std::move(group.modules));
    members.push_back(std::move(group.members));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ShardedGroups> groups,
                        ShardedGroups::Create(engine, mesh, std::move(members), policy, loader));
  return std::unique_ptr<ShardedModel>(new ShardedModel(root, modules, std::move(groups)));
}

ShardedModel::ShardedModel(Module& root, const std::vector<std::vector<Module*>>& modules,
                           std::unique_ptr<ShardedGroups> groups)
    : root_(root),
      groups_(std::move(groups)),
      hooks_(std::make_unique<ModuleHooks>(*groups_, modules)),
      casts_(std::make_unique<BoundaryCasts>()) {
  for (int group = 0; group < groups_->group_count(); ++group) {
    for (Module* module : modules[static_cast<size_t>(group)]) {
      group_of_.emplace(module, group);
      if (policy().cast_forward_inputs) casts_->CastInputs(*module, groups_->dtypes(group).param);
    }
  }
  if (policy().output_dtype.has_value()) casts_->CastOutputs(root_, *policy().output_dtype);
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::SetRequiresGradientSync(bool sync) {
  for (int i = 0; i < groups_->group_count(); ++i) groups_->SetRequiresGradientSync(i, sync);
}

void ShardedModel::SetRequiresAllReduce(bool all_reduce) {
  for (int i = 0; i < groups_->group_count(); ++i) groups_->SetRequiresAllReduce(i, all_reduce);
}

void ShardedModel::SetIsLastBackward(bool last) { groups_->SetIsLastBackward(last); }

bool ShardedModel::IsFirstReplica(const Parameter& parameter) const {
  return groups_->IsFirstReplica(parameter);
}

void ShardedModel::SetReshardAfterForward(bool reshard) {
  for (int i = kRootGroup + 1; i < groups_->group_count(); ++i) groups_->SetReshardAfterForward(i, reshard);
}

void ShardedModel::SetReshardAfterBackward(bool reshard) {
  for (int i = 0; i < groups_->group_count(); ++i) groups_->SetReshardAfterBackward(i, reshard);
}

absl::Status ShardedModel::SetRequiresGradientSync(const Module& module, bool sync, bool recurse) {
  return SetBelow(module, recurse, &ShardedGroups::SetRequiresGradientSync, sync);
}

absl::Status ShardedModel::SetRequiresAllReduce(const Module& module, bool all_reduce, bool recurse) {
  return SetBelow(module, recurse, &ShardedGroups::SetRequiresAllReduce, all_reduce);
}

absl::Status ShardedModel::SetReshardAfterForward(const Module& module, bool reshard, bool recurse) {
  return SetBelow(module, recurse, &ShardedGroups::SetReshardAfterForward, reshard);
}

absl::Status ShardedModel::SetReshardAfterBackward(const Module& module, bool reshard, bool recurse) {
  return SetBelow(module, recurse, &ShardedGroups::SetReshardAfterBackward, reshard);
}

absl::Status ShardedModel::SetBelow(const Module& module, bool recurse, GroupSetter set, bool value) {
  WEFT_RETURN_IF_ERROR(GroupOf(module).status());
  std::vector<const Module*> modules = {&module};
  while (!modules.empty()) {
    const Module* next = modules.back();
    modules.pop_back();
    const auto found = group_of_.find(next);
    if (found != group_of_.end()) (groups_.get()->*set)(found->second, value);
    if (recurse) modules.insert(modules.end(), next->children().begin(), next->children().end());
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ShardedModel::GroupOf(const Module& module) const {
  const auto found = group_of_.find(&module);
  if (found != group_of_.end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("module '", module.name(), "' is no parameter group of the model sharded at '",
                   groups_->name(kRootGroup), "': name its root, or one of the blocks given to FullyShard"));
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
  groups_->SetForwardPrefetch(group, std::move(groups));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetModulesToBackwardPrefetch(const Module& module,
                                                        absl::Span<Module* const> next) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  WEFT_ASSIGN_OR_RETURN(std::vector<int> groups, GroupsOf(next));
  groups_->SetBackwardPrefetch(group, std::move(groups));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetGradientDivideFactor(const Module& module, double factor) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  ShardingPolicy with_factor = policy();
  with_factor.gradient_divide_factor = factor;
  WEFT_RETURN_IF_ERROR(with_factor.Validate());
  groups_->SetGradientDivideFactor(group, factor);
  return absl::OkStatus();
}

absl::Status ShardedModel::SetUnshardInBackward(const Module& module, bool unshard) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  groups_->SetUnshardInBackward(group, unshard);
  return absl::OkStatus();
}

absl::Status ShardedModel::SetCustomAllGather(const Module& module, CustomAllGather all_gather) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  groups_->SetCustomAllGather(group, std::move(all_gather));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetCustomReduceScatter(const Module& module, CustomReduceScatter reduce_scatter) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  groups_->SetCustomReduceScatter(group, std::move(reduce_scatter));
  return absl::OkStatus();
}

absl::Status ShardedModel::SetGradientHook(const Module& module, GradientHook hook) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  groups_->SetGradientHook(group, std::move(hook));
  return absl::OkStatus();
}

void ShardedModel::RecordOrderAgain() { groups_->RecordOrderAgain(); }

void ShardedModel::SetScheduleObserver(ScheduleObserver observer) {
  groups_->SetScheduleObserver(std::move(observer));
}

void ShardedModel::SetScheduleRules(std::shared_ptr<const ScheduleRules> rules) {
  groups_->SetScheduleRules(std::move(rules));
}

absl::StatusOr<UnshardHandle> ShardedModel::Unshard(const Module& module) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  WEFT_RETURN_IF_ERROR(groups_->Unshard(group));
  return UnshardHandle(*groups_, group);
}

absl::Status ShardedModel::Reshard(const Module& module) {
  WEFT_ASSIGN_OR_RETURN(const int group, GroupOf(module));
  return groups_->Reshard(group);
}

absl::Status UnshardHandle::Wait() {
  if (std::exchange(waited_, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the unshard of parameter group '", groups_->name(group_),
                     "' was waited for already: wait once for each Unshard"));
  }
  return groups_->WaitUnshard(group_);
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

absl::Status ShardedModel::ReduceGradients() { return groups_->ReduceGradients(); }

absl::Status ShardedModel::CheckGradientsReduced() const { return groups_->CheckGradientsReduced(); }

std::vector<ShardView> ShardedModel::Shards() const { return groups_->Shards(); }

absl::StatusOr<std::vector<ShardView>> ShardedModel::CurrentShards() { return groups_->CurrentShards(); }

absl::Status ShardedModel::UpdateShards(const ShardUpdate& update) { return groups_->UpdateShards(update); }

absl::Status ShardedModel::BeginUpdatesInBackward(ShardUpdate update, std::vector<ClipSet> sets) {
  return groups_->BeginUpdatesInBackward(std::move(update), std::move(sets));
}

absl::StatusOr<std::vector<GradientNorm>> ShardedModel::FinishUpdatesInBackward() {
  return groups_->FinishUpdatesInBackward();
}

absl::Status ShardedModel::BeginWriting() { return groups_->BeginWriting(); }

const ShardingPolicy& ShardedModel::policy() const { return groups_->policy(); }

const ResidencyChoice& ShardedModel::residency() const { return groups_->residency(); }

ShardingCounters ShardedModel::counters() const { return groups_->counters(); }

MemoryPeaks ShardedModel::peaks() const { return groups_->peaks(); }

void ShardedModel::ResetPeaks() { groups_->ResetPeaks(); }

absl::Status ShardedModel::ResetAfterError() {
  WEFT_RETURN_IF_ERROR(groups_->ResetAfterError());
  return groups_->CompareUpdates();
}

}  // namespace weft
