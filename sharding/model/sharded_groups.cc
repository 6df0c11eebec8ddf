#include "weft/sharding/sharded_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include <absl/algorithm/container.h>

#include "sharding/group/param_group.h"
#include "sharding/model/backward_updates.h"
#include "sharding/model/group_schedule.h"
#include "sharding/model/model_scalars.h"
#include "sharding/plan/mesh_groups.h"
#include "sharding/plan/region_plan.h"
#include "sharding/plan/replicate_buckets.h"
#include "weft/core/status.h"
#include "weft/memory/shared_block.h"

namespace weft {
namespace {

std::vector<PassEvent> OrderOf(const std::vector<GroupMembers>& groups) {
  std::vector<int> parents;
  parents.reserve(groups.size());
  for (const GroupMembers& members : groups) parents.push_back(members.parent);
  return ModuleOrder(parents);
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
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<CommContext> context,
                        CommContext::Create(engine, meshes.meshes[0].shard, buckets[0].groups, options));
  for (size_t mesh = 1; mesh < meshes.meshes.size(); ++mesh) {
    WEFT_RETURN_IF_ERROR(context->AddMesh(meshes.meshes[mesh].shard, buckets[mesh].groups,
                                          LaneOptions(policy, specs, static_cast<int>(mesh))));
  }
  return context;
}

std::vector<size_t> ImageBytes(const std::vector<GroupSpec>& specs) {
  std::vector<size_t> bytes;
  bytes.reserve(specs.size());
  for (const GroupSpec& spec : specs) bytes.push_back(spec.image_bytes());
  return bytes;
}

// Node memory of images that ranks share; empty blocks if images are private.
struct SharedImages {
  std::vector<SharedBlock> in_place;  // One for each group, shared by the ranks of the shard group.
  SharedBlock region;                 // For all groups, shared by the shard group's ranks in a domain.
  int region_holders = 0;
};

absl::StatusOr<SharedImages> AllocateImages(CommEngine& engine, const ProcessGroup& shard_group,
                                            const std::vector<GroupSpec>& specs,
                                            const std::vector<PassEvent>& order, const ShardingPolicy& policy,
                                            Residency residency) {
  Bootstrap& bootstrap = engine.bootstrap();
  const auto share = [&](absl::Span<const SharedBlockRequest> requests) {
    return ShareBlocks(bootstrap, engine.heap(), requests, engine.timeout());
  };
  SharedImages images;
  images.in_place.resize(specs.size());
  if (residency == Residency::kInPlace) {
    std::vector<SharedBlockRequest> requests;
    for (const size_t bytes : ImageBytes(specs)) requests.push_back({shard_group.ranks, bytes});
    WEFT_ASSIGN_OR_RETURN(images.in_place, share(requests));
  } else if (residency == Residency::kNodeShared) {
    SharedBlockRequest request;
    request.bytes = PlanRegionBytes(order, ImageBytes(specs), policy);
    for (const int rank : shard_group.ranks) {
      if (engine.share_domains().map.SameNode(rank, bootstrap.rank())) request.holders.push_back(rank);
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<SharedBlock> region, share({request}));
    images.region = std::move(region.front());
    images.region_holders = static_cast<int>(request.holders.size());
  }
  return images;
}

// OK if this rank's segment has room for what a group keeps beside a shared image: the master, unless it lies
// in the image, and the cast shard of images shared on each node. Errors: kResourceExhausted.
absl::Status CheckRoomForShards(NodeHeap& heap, const std::vector<GroupSpec>& specs, int shard_rank,
                                Residency residency) {
  std::vector<std::byte*> blocks;
  absl::Status status;
  for (const GroupSpec& spec : specs) {
    const bool in_place = residency == Residency::kInPlace;
    const size_t master = in_place && !spec.is_cast() ? 0 : spec.master_bytes(shard_rank);
    const size_t cast = !in_place && spec.is_cast() ? spec.shard_bytes(shard_rank, spec.dtypes.param) : 0;
    const absl::StatusOr<std::byte*> block = heap.Allocate(master + cast);
    if (block.ok()) blocks.push_back(*block);
    status.Update(block.status());
  }
  for (std::byte* block : blocks) heap.Free(block);
  return status;
}

// Allocates images. If node memory has no room for shared ones and the policy is kAuto, images become
// private.
absl::StatusOr<SharedImages> AllocateImagesOrNone(CommEngine& engine, const ProcessGroup& shard_group,
                                                  const std::vector<GroupSpec>& specs,
                                                  const std::vector<PassEvent>& order,
                                                  const ShardingPolicy& policy, ResidencyChoice& residency) {
  absl::StatusOr<SharedImages> images =
      AllocateImages(engine, shard_group, specs, order, policy, residency.residency);
  if (policy.node_shared != NodeShared::kAuto || residency.residency == Residency::kPrivate) return images;
  if (images.ok()) {
    const absl::Status room =
        AgreeOnStatus(engine.bootstrap(),
                      CheckRoomForShards(engine.heap(), specs, shard_group.group_rank, residency.residency),
                      engine.timeout());
    if (room.ok()) return images;
    images = room;  // Frees them.
  }
  if (!absl::IsResourceExhausted(images.status())) return images;
  residency = {Residency::kPrivate, absl::StrCat("node memory has no room for images that ranks share: ",
                                                 images.status().message())};
  return AllocateImages(engine, shard_group, specs, order, policy, residency.residency);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedGroups>> ShardedGroups::Create(CommEngine& engine,
                                                                     const DeviceMesh& mesh,
                                                                     std::vector<GroupMembers> groups,
                                                                     const ShardingPolicy& wanted,
                                                                     const ShardLoader& loader) {
  Bootstrap& bootstrap = engine.bootstrap();
  const absl::Duration timeout = engine.timeout();
  WEFT_RETURN_IF_ERROR(wanted.Validate());
  WEFT_ASSIGN_OR_RETURN(const GroupMeshes meshes,
                        PlanGroupMeshes(groups, mesh, wanted, bootstrap.size(), bootstrap.rank()));
  const ProcessGroup& shard_group = meshes.meshes[0].shard;
  const int shard_size = shard_group.size();
  const ShardingPolicy policy = ResolvePrefetch(wanted, bootstrap.node_map(), shard_size);
  WEFT_ASSIGN_OR_RETURN(const std::vector<ReplicateBuckets> buckets, PlanBuckets(groups, meshes, policy));
  WEFT_RETURN_IF_ERROR(CheckReplicas(policy, buckets[0]));

  const std::vector<PassEvent> order = OrderOf(groups);
  absl::StatusOr<std::vector<GroupSpec>> specs = SpecifyGroups(std::move(groups), meshes, buckets, policy);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, specs.status(), timeout));
  ShardingPolicy of_any_group = policy;  // A single group that keeps parts makes all images private.
  of_any_group.reshard_after_forward_size = 0;
  for (const GroupSpec& spec : *specs) {
    of_any_group.reshard_after_forward_size =
        std::max(of_any_group.reshard_after_forward_size, spec.regather_size);
  }
  WEFT_ASSIGN_OR_RETURN(ResidencyChoice residency,
                        ChooseResidency(of_any_group, engine.share_domains(), shard_size));
  WEFT_ASSIGN_OR_RETURN(SharedImages images,
                        AllocateImagesOrNone(engine, shard_group, *specs, order, policy, residency));
  absl::StatusOr<std::unique_ptr<CommContext>> context =
      CreateContext(engine, meshes, buckets, policy, *specs, residency.residency);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, context.status(), timeout));
  if (images.region) (*context)->memory().ShareImages(std::move(images.region), images.region_holders);
  std::unique_ptr<ShardedGroups> sharded(
      new ShardedGroups(policy, std::move(residency), *std::move(context)));
  const absl::Status created = sharded->CreateGroups(*std::move(specs), std::move(images.in_place), loader);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, created, timeout));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, sharded->CreateSchedule(mesh, order), timeout));
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
  const absl::Status status = schedule_->BeforeForward(number, pass);
  return status.ok() ? status : Fail(status, absl::StrCat("before forward of '", name(number), "'"));
}

absl::Status ShardedGroups::AfterForward(int number, const SchedulePass& pass) {
  const absl::Status status = schedule_->AfterForward(number, pass);
  return status.ok() ? status : Fail(status, absl::StrCat("after forward of '", name(number), "'"));
}

absl::Status ShardedGroups::BeforeBackward(int number, const SchedulePass& pass) {
  const absl::Status status = schedule_->BeforeBackward(number, pass);
  return status.ok() ? status : Fail(status, absl::StrCat("before backward of '", name(number), "'"));
}

absl::Status ShardedGroups::AfterBackward(int number) {
  const absl::Status status = schedule_->AfterBackward(number);
  return status.ok() ? status : Fail(status, absl::StrCat("after backward of '", name(number), "'"));
}

absl::Status ShardedGroups::FinishBackward() {
  const absl::Status status = schedule_->FinishBackward();
  return status.ok() ? status : Fail(status, absl::StrCat("after backward of '", name(kRootGroup), "'"));
}

absl::Status ShardedGroups::ReduceGradients() {
  const absl::Status status = schedule_->ReduceGradients();
  return status.ok() ? status : Fail(status, absl::StrCat("reduction of '", name(kRootGroup), "'"));
}

absl::Status ShardedGroups::PrepareGradients(int number) {
  const absl::Status status = group(number).PrepareGradients();
  return status.ok() ? status : Fail(status, absl::StrCat("a gradient of '", name(number), "'"));
}

void ShardedGroups::Abandon(const SchedulePass& pass) { schedule_->Abandon(pass); }

bool ShardedGroups::is_in_backward() const { return schedule_->is_in_backward(); }

void ShardedGroups::Stop(const absl::Status& cause) { context_->state().Stop(cause); }

absl::Status ShardedGroups::Fail(const absl::Status& cause, const std::string& place) {
  return Annotate(context_->state().Fail(cause), place);
}

absl::Status ShardedGroups::Unshard(int number) { return group(number).Unshard(Priority::kPrefetch); }

absl::Status ShardedGroups::WaitUnshard(int number) { return group(number).WaitUnshard(); }

absl::Status ShardedGroups::Reshard(int number) { return group(number).Reshard(); }

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

std::vector<ShardView> ShardedGroups::Shards() const {
  std::vector<ShardView> shards;
  for (const auto& group : groups_) {
    for (ShardView& shard : group->Shards()) shards.push_back(shard);
  }
  return shards;
}

std::vector<ShardView> ShardedGroups::Shards(int number) const { return group(number).Shards(); }

std::vector<MasterView> ShardedGroups::Masters(int number) const { return group(number).Masters(); }

absl::Status ShardedGroups::CheckMastersAreF32() const {
  for (const auto& group : groups_) {
    if (group->dtypes().master == DType::kF32) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter group '", group->name(), "' has ", ToAbsl(Name(group->dtypes().master)),
                     " masters: call BeginWriting, and write them through Masters"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ShardView>> ShardedGroups::CurrentShards() {
  WEFT_RETURN_IF_ERROR(CheckMastersAreF32());
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->AllGatherUpdates(Priority::kCritical));
  std::vector<ShardView> shards;
  for (const auto& group : groups_) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> current, group->CurrentShards());
    shards.insert(shards.end(), current.begin(), current.end());
  }
  return shards;
}

absl::Status ShardedGroups::UpdateShards(const ShardUpdate& update) {
  WEFT_RETURN_IF_ERROR(CheckMastersAreF32());
  WEFT_RETURN_IF_ERROR(context_->epochs().is_read() ? BeginWriting() : schedule_->BeginWriting());
  for (int number = 0; number < static_cast<int>(groups_.size()); ++number) {
    absl::Status updated = update(group(number).Shards());
    if (updated.ok()) updated = schedule_->AfterUpdate(number);
    if (!updated.ok()) {
      return Annotate(context_->state().Fail(updated),
                      absl::StrCat("update of '", group(number).name(), "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status ShardedGroups::BeginUpdatesInBackward(ShardUpdate update, std::vector<ClipSet> sets) {
  WEFT_RETURN_IF_ERROR(CheckMastersAreF32());
  if (policy_.unused_gradients != UnusedGradients::kZero) {
    return absl::FailedPreconditionError(
        "updates in backward come before ranks agree on the parameters that were used: set "
        "ShardingPolicy::unused_gradients to kZero");
  }
  for (const ClipSet& set : sets) {
    if (set.max_norm == 0) continue;
    return absl::InvalidArgumentError(
        "updates in backward come before the norm of all gradients is known: set max_norm to 0 (no "
        "clipping)");
  }
  backward_updates_.reset();  // Before the next one, which sets the groups' hooks.
  backward_updates_ =
      std::make_unique<BackwardUpdates>(*context_, groups_, std::move(update), std::move(sets));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GradientNorm>> ShardedGroups::FinishUpdatesInBackward() {
  if (backward_updates_ == nullptr) {
    return absl::FailedPreconditionError(
        "there are no updates in backward: call BeginUpdatesInBackward first");
  }
  const std::unique_ptr<BackwardUpdates> updates = std::move(backward_updates_);
  WEFT_RETURN_IF_ERROR(updates->UpdateRest());
  WEFT_ASSIGN_OR_RETURN(std::vector<GradientNorm> norms, updates->Norms(*scalars_));
  // Sends the updates.
  WEFT_RETURN_IF_ERROR(UpdateShards([](absl::Span<const ShardView>) { return absl::OkStatus(); }));
  return norms;
}

absl::Status ShardedGroups::BeginWriting() {
  WEFT_RETURN_IF_ERROR(schedule_->BeginWriting());
  return schedule_->FinishReading();
}

bool ShardedGroups::are_shards_read() const { return context_->epochs().is_read(); }

absl::Status ShardedGroups::ForgetReducedGradients(const std::function<bool(const Parameter&)>& selects) {
  for (const auto& group : groups_) WEFT_RETURN_IF_ERROR(group->ForgetReducedGradients(selects));
  return absl::OkStatus();
}

std::vector<bool> ShardedGroups::ReducedParameters(int number) const {
  return group(number).ReducedParameters();
}

std::shared_ptr<const void> ShardedGroups::ReducedGradients(int number) const {
  return group(number).reduced_gradients();
}

void ShardedGroups::ZeroGradients() {
  for (const auto& group : groups_) group->ZeroGradients();
  schedule_->ReshardKept();
}

absl::Status ShardedGroups::AllReduceScalars(const std::string& label, void* values, DType dtype,
                                             int64_t count, ReduceOp op) {
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  if (bytes > static_cast<int64_t>(PipelineLanes::kScalarBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", label, "' has ", bytes, " bytes, but a scalar reduction takes at most ",
                     PipelineLanes::kScalarBytes, ": reduce larger arrays on a lane of the engine"));
  }
  return scalars_->AllReduce(label, values, dtype, count, op);
}

absl::Status ShardedGroups::ResetAfterError() {
  backward_updates_.reset();
  WEFT_RETURN_IF_ERROR(context_->ResetAfterError());
  for (const auto& group : groups_) group->ResetAfterError();
  schedule_->ResetAfterError();
  return absl::OkStatus();
}

}  // namespace weft
