#include "weft/sharding/sharded_groups.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "sharding/group/group_agreement.h"
#include "sharding/group/param_group.h"
#include "sharding/group/replica_agreement.h"
#include "sharding/model/backward_updates.h"
#include "sharding/model/group_schedule.h"
#include "sharding/model/model_scalars.h"
#include "sharding/model/shared_images.h"
#include "sharding/plan/mesh_groups.h"
#include "sharding/plan/replicate_buckets.h"
#include "weft/core/status.h"

namespace weft {
namespace {

std::vector<PassEvent> OrderOf(const std::vector<GroupMembers>& groups) {
  std::vector<int> parents;
  parents.reserve(groups.size());
  for (const GroupMembers& members : groups) parents.push_back(members.parent);
  return ModuleOrder(parents);
}

absl::Status CheckIsNotSharded(const std::vector<GroupMembers>& groups) {
  for (const GroupMembers& group : groups) {
    for (const std::shared_ptr<Parameter>& parameter : group.parameters) {
      if (parameter->sharded_by.empty()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter '", parameter->name, "' of group '", group.name, "' is sharded already, by the group '",
          parameter->sharded_by,
          "' of another model: give all modules to one FullyShard as blocks, exclude the parameter "
          "by ShardingPolicy::ignored, or destroy that model first"));
    }
  }
  return absl::OkStatus();
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

// The parameters of the groups of one mesh.
std::vector<std::shared_ptr<Parameter>> ParametersOf(const std::vector<GroupMembers>& groups,
                                                     const GroupMeshes& meshes, int mesh) {
  std::vector<std::shared_ptr<Parameter>> parameters;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (meshes.mesh_of_group[i] != mesh) continue;
    parameters.insert(parameters.end(), groups[i].parameters.begin(), groups[i].parameters.end());
  }
  return parameters;
}

// The replicate buckets of each mesh.
absl::StatusOr<std::vector<ReplicateBuckets>> PlanBuckets(const std::vector<GroupMembers>& groups,
                                                          const GroupMeshes& meshes,
                                                          const ShardingPolicy& policy) {
  std::vector<ReplicateBuckets> buckets;
  for (int mesh = 0; mesh < static_cast<int>(meshes.meshes.size()); ++mesh) {
    const MeshGroups& of_mesh = meshes.meshes[static_cast<size_t>(mesh)];
    WEFT_ASSIGN_OR_RETURN(
        buckets.emplace_back(),
        PlanReplicateBuckets(ParametersOf(groups, meshes, mesh), policy, of_mesh.shard, of_mesh.replicate));
  }
  return buckets;
}

absl::StatusOr<std::vector<GroupSpec>> SpecifyGroups(std::vector<GroupMembers> groups,
                                                     const GroupMeshes& meshes,
                                                     const std::vector<ReplicateBuckets>& buckets,
                                                     const ShardingPolicy& policy) {
  std::vector<GroupSpec> specs;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto mesh = static_cast<size_t>(meshes.mesh_of_group[i]);
    const std::vector<int> bucket_of = buckets[mesh].BucketsOf(groups[i].parameters);
    WEFT_ASSIGN_OR_RETURN(GroupSpec spec,
                          SpecifyGroup(std::move(groups[i]), policy, meshes.meshes[mesh].shard.size(),
                                       bucket_of, static_cast<int>(buckets[mesh].groups.size())));
    spec.mesh = static_cast<int>(mesh);
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<ResidencyChoice> PlanResidency(const ShardingPlan& plan, const ShareDomains& domains) {
  ShardingPolicy of_any_group = plan.policy;  // A single group that keeps parts makes all images private.
  of_any_group.reshard_after_forward_size = 0;
  for (const GroupSpec& spec : plan.specs) {
    of_any_group.reshard_after_forward_size =
        std::max(of_any_group.reshard_after_forward_size, spec.regather_size);
  }
  if (plan.meshes.meshes.size() == 1) of_any_group.mesh_of = nullptr;  // It gave no parameter another mesh.
  return ChooseResidency(of_any_group, domains, plan.meshes.meshes[0].shard.size());
}

absl::StatusOr<ShardingPlan> PlanSharding(std::vector<GroupMembers> groups, const DeviceMesh& mesh,
                                          const ShardingPolicy& policy, const CommEngine& engine) {
  WEFT_RETURN_IF_ERROR(policy.Validate());
  WEFT_RETURN_IF_ERROR(CheckIsNotSharded(groups));
  const Bootstrap& bootstrap = engine.bootstrap();
  ShardingPlan plan;
  WEFT_ASSIGN_OR_RETURN(plan.meshes,
                        PlanGroupMeshes(groups, mesh, policy, bootstrap.size(), bootstrap.rank()));
  plan.policy = ResolvePrefetch(policy, bootstrap.node_map(), plan.meshes.meshes[0].shard.size());
  WEFT_ASSIGN_OR_RETURN(plan.buckets, PlanBuckets(groups, plan.meshes, plan.policy));
  WEFT_RETURN_IF_ERROR(CheckReplicas(plan.policy, plan.buckets[0]));
  WEFT_ASSIGN_OR_RETURN(plan.specs, SpecifyGroups(std::move(groups), plan.meshes, plan.buckets, plan.policy));
  WEFT_ASSIGN_OR_RETURN(plan.residency, PlanResidency(plan, engine.share_domains()));
  return plan;
}

// Sizes of the regather groups of a mesh, ascending.
std::vector<int> RegatherSizes(const std::vector<GroupSpec>& specs, int mesh) {
  std::set<int> sizes;
  for (const GroupSpec& spec : specs) {
    if (spec.mesh == mesh && spec.regather_size > 0) sizes.insert(spec.regather_size);
  }
  return {sizes.begin(), sizes.end()};
}

PipelineLanes::Options LaneOptions(const ShardingPolicy& policy, const std::vector<GroupSpec>& specs,
                                   int mesh) {
  return {RegatherSizes(specs, mesh), policy.shard_optimizer_over_replicas, policy.wire_compression};
}

absl::StatusOr<std::unique_ptr<CommContext>> CreateContext(CommEngine& engine, const GroupMeshes& meshes,
                                                           const std::vector<ReplicateBuckets>& buckets,
                                                           const ShardingPolicy& policy,
                                                           const std::vector<GroupSpec>& specs,
                                                           Residency residency) {
  CommContext::Options options;
  options.bounds = {policy.max_reduce_scatters, policy.max_all_reduces};
  options.lanes = LaneOptions(policy, specs, 0);
  options.in_place = residency == Residency::kInPlace;
  options.model = specs.front().name();
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<CommContext> context,
                        CommContext::Create(engine, meshes.meshes[0].shard, buckets[0].groups, options));
  for (size_t mesh = 1; mesh < meshes.meshes.size(); ++mesh) {
    WEFT_RETURN_IF_ERROR(context->AddMesh(meshes.meshes[mesh].shard, buckets[mesh].groups,
                                          LaneOptions(policy, specs, static_cast<int>(mesh))));
  }
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedGroups>> ShardedGroups::Create(CommEngine& engine,
                                                                     const DeviceMesh& mesh,
                                                                     std::vector<GroupMembers> groups,
                                                                     const ShardingPolicy& wanted,
                                                                     const ShardLoader& loader) {
  Bootstrap& bootstrap = engine.bootstrap();
  const absl::Duration timeout = engine.timeout();
  const std::vector<PassEvent> order = OrderOf(groups);
  absl::StatusOr<ShardingPlan> plan = PlanSharding(std::move(groups), mesh, wanted, engine);
  WEFT_RETURN_IF_ERROR(AgreeOnPlan(bootstrap, plan, timeout));
  auto& [policy, meshes, buckets, specs, residency] = *plan;
  WEFT_ASSIGN_OR_RETURN(SharedImages images, AllocateSharedImages(engine, meshes.meshes[0].shard, specs,
                                                                  order, policy, residency));
  absl::StatusOr<std::unique_ptr<CommContext>> context =
      CreateContext(engine, meshes, buckets, policy, specs, residency.residency);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, context.status(), timeout));
  if (images.region) (*context)->memory().ShareImages(std::move(images.region), images.region_holders);
  std::unique_ptr<ShardedGroups> sharded(
      new ShardedGroups(policy, std::move(residency), *std::move(context)));
  const absl::Status created = sharded->CreateGroups(std::move(specs), std::move(images.in_place), loader);
  WEFT_RETURN_IF_ERROR(AgreeOnReplicas(bootstrap, sharded->groups_, created, timeout));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, sharded->CreateSchedule(mesh, order), timeout));
  for (const auto& group : sharded->groups_) group->DropParameterData();
  return sharded;
}

ShardedGroups::ShardedGroups(ShardingPolicy policy, ResidencyChoice residency,
                             std::unique_ptr<CommContext> context)
    : policy_(std::move(policy)), residency_(std::move(residency)), context_(std::move(context)) {}

ShardedGroups::~ShardedGroups() = default;

absl::Status ShardedGroups::CreateGroups(std::vector<GroupSpec> specs, std::vector<SharedBlock> images,
                                         const ShardLoader& loader) {
  for (size_t i = 0; i < specs.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(groups_.emplace_back(),
                          ParamGroup::Create(*context_, std::move(specs[i]), policy_, std::move(images[i])));
  }
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->Load(loader));
  return absl::OkStatus();
}

absl::Status ShardedGroups::CreateSchedule(const DeviceMesh& mesh, std::vector<PassEvent> module_order) {
  std::vector<std::string_view> axes;
  for (const MeshAxis& axis : mesh.axes()) axes.push_back(axis.name);
  WEFT_ASSIGN_OR_RETURN(const ProcessGroup all_ranks,
                        mesh.Group(axes, context_->state().engine().bootstrap().rank()));
  WEFT_ASSIGN_OR_RETURN(ModelScalars scalars, ModelScalars::Create(*context_, all_ranks));
  scalars_ = std::make_unique<ModelScalars>(scalars);
  schedule_ = std::make_unique<GroupSchedule>(*context_, *scalars_, groups_, std::move(module_order), policy_,
                                              residency_.residency);
  return absl::OkStatus();
}

absl::Status ShardedGroups::BeforeForward(int number, const SchedulePass& pass) {
  return FailOnError(schedule_->BeforeForward(number, pass), "before forward", number);
}

absl::Status ShardedGroups::AfterForward(int number, const SchedulePass& pass) {
  return FailOnError(schedule_->AfterForward(number, pass), "after forward", number);
}

absl::Status ShardedGroups::BeforeBackward(int number, const SchedulePass& pass) {
  absl::Status status = number == kRootGroup ? CheckUpdatesAreInLastBackward() : absl::OkStatus();
  if (status.ok()) status = schedule_->BeforeBackward(number, pass);
  return FailOnError(status, "before backward", number);
}

absl::Status ShardedGroups::AfterBackward(int number) {
  return FailOnError(schedule_->AfterBackward(number), "after backward", number);
}

absl::Status ShardedGroups::FinishBackward() {
  return FailOnError(schedule_->FinishBackward(), "after backward", kRootGroup);
}

absl::Status ShardedGroups::ReduceGradients() {
  return FailOnError(schedule_->ReduceGradients(), "reduction", kRootGroup);
}

absl::Status ShardedGroups::PrepareGradients(int number) {
  return FailOnError(group(number).PrepareGradients(), "a gradient", number);
}

void ShardedGroups::Abandon(uintptr_t pass_id) { schedule_->Abandon(pass_id); }

bool ShardedGroups::is_in_backward() const { return schedule_->is_in_backward(); }

void ShardedGroups::Stop(const absl::Status& cause) { context_->state().Stop(cause); }

absl::Status ShardedGroups::Fail(const absl::Status& cause, const std::string& place) {
  return Annotate(context_->state().Fail(cause), place);
}

absl::Status ShardedGroups::FailOnError(const absl::Status& status, std::string_view what, int number) {
  return status.ok() ? status : Fail(status, absl::StrCat(ToAbsl(what), " of '", name(number), "'"));
}

absl::Status ShardedGroups::Unshard(int number) {
  return FailOnError(group(number).Unshard(Priority::kPrefetch), "unshard", number);
}

absl::Status ShardedGroups::WaitUnshard(int number) {
  const bool is_gathering = is_being_unsharded(number);  // Else an error is one of all ranks.
  const absl::Status status = group(number).WaitUnshard();
  return is_gathering ? FailOnError(status, "unshard", number) : status;
}

absl::Status ShardedGroups::Reshard(int number) {
  schedule_->ReleaseKept(number);
  return group(number).Reshard();
}

bool ShardedGroups::is_unsharded(int number) const {
  return group(number).state() == ParamGroup::State::kUnsharded;
}

bool ShardedGroups::is_being_unsharded(int number) const {
  return group(number).state() == ParamGroup::State::kUnsharding;
}

void ShardedGroups::SetRequiresGradientSync(int number, bool sync) {
  schedule_->switches(number).gradient_sync = sync;
}

void ShardedGroups::SetRequiresAllReduce(int number, bool all_reduce) {
  schedule_->switches(number).all_reduce = all_reduce;
}

void ShardedGroups::SetReshardAfterForward(int number, bool reshard) {
  schedule_->switches(number).reshard_after_forward = reshard;
}

void ShardedGroups::SetReshardAfterBackward(int number, bool reshard) {
  schedule_->switches(number).reshard_after_backward = reshard;
}

void ShardedGroups::SetUnshardInBackward(int number, bool unshard) {
  schedule_->switches(number).unshard_in_backward = unshard;
}

void ShardedGroups::SetForwardPrefetch(int number, std::vector<int> next) {
  schedule_->SetForwardPrefetch(number, std::move(next));
}

void ShardedGroups::SetBackwardPrefetch(int number, std::vector<int> next) {
  schedule_->SetBackwardPrefetch(number, std::move(next));
}

void ShardedGroups::SetGradientDivideFactor(int number, double factor) {
  group(number).SetGradientDivideFactor(factor);
}

void ShardedGroups::SetCustomAllGather(int number, CustomAllGather all_gather) {
  group(number).SetCustomAllGather(std::move(all_gather));
}

void ShardedGroups::SetCustomReduceScatter(int number, CustomReduceScatter reduce_scatter) {
  group(number).SetCustomReduceScatter(std::move(reduce_scatter));
}

void ShardedGroups::SetGradientHook(int number, GradientHook hook) {
  group(number).SetGradientHook(std::move(hook));
}

void ShardedGroups::SetIsLastBackward(bool last) { schedule_->SetIsLastBackward(last); }

void ShardedGroups::SetScheduleObserver(ScheduleObserver observer) {
  schedule_->SetObserver(std::move(observer));
}

void ShardedGroups::SetScheduleRules(std::shared_ptr<const ScheduleRules> rules) {
  schedule_->SetRules(std::move(rules));
}

void ShardedGroups::RecordOrderAgain() { schedule_->ForgetOrders(); }

void ShardedGroups::SetWaitCheck(std::function<absl::Status()> check) {
  context_->state().SetWaitCheck(std::move(check));
}

const std::string& ShardedGroups::name(int number) const { return group(number).name(); }

const ParameterDTypes& ShardedGroups::dtypes(int number) const { return group(number).dtypes(); }

bool ShardedGroups::IsFirstReplica(const Parameter& parameter) const {
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      if (group->parameters()[i].get() != &parameter) continue;
      return group->lanes().replicate_group(group->layout().parameters()[i].replicate_bucket).group_rank == 0;
    }
  }
  return false;
}

const FlatLayout& ShardedGroups::layout(int number) const { return group(number).layout(); }

ShardingCounters ShardedGroups::counters() const { return context_->state().counters(); }

MemoryPeaks ShardedGroups::peaks() const { return context_->memory().peaks(); }

void ShardedGroups::ResetPeaks() { context_->memory().ResetPeaks(); }

absl::Status ShardedGroups::CheckGradientsReduced() const {
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->CheckGradientsReduced());
  return absl::OkStatus();
}

void ShardedGroups::ZeroGradients() {
  for (const auto& group : groups_) group->ZeroGradients();
  schedule_->ReshardKept();
}

absl::Status ShardedGroups::AllReduceScalars(const std::string& label, void* values, DType dtype,
                                             int64_t count, ReduceOp op) {
  const int64_t bytes = BytesOf(count, dtype);
  if (bytes > static_cast<int64_t>(PipelineLanes::kScalarBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", label, "' has ", bytes, " bytes, but a scalar reduction takes at most ",
                     PipelineLanes::kScalarBytes, ": reduce larger arrays on a lane of the engine"));
  }
  return scalars_->AllReduce(label, values, dtype, count, op);
}

const absl::Status& ShardedGroups::status() const { return context_->status(); }

absl::Status ShardedGroups::ResetAfterError() {
  backward_updates_.reset();
  WEFT_RETURN_IF_ERROR(context_->ResetAfterError());
  for (const auto& group : groups_) group->ResetAfterError();
  schedule_->ResetAfterError();
  return absl::OkStatus();
}

}  // namespace weft
