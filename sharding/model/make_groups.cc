#include "sharding/model/make_groups.h"

#include <utility>

#include "sharding/pipeline/image_region.h"
#include "sharding/plan/execution_order.h"
#include "sharding/plan/group_spec.h"
#include "weft/core/status.h"
#include "weft/memory/shared_block.h"

namespace weft {
namespace {

absl::StatusOr<std::vector<GroupSpec>> SpecifyGroups(const std::vector<PlannedGroup>& plan,
                                                     const ReplicateBuckets& buckets,
                                                     const ShardingPolicy& policy, int shard_size) {
  const auto bucket_count = static_cast<int>(buckets.groups.size());
  std::vector<GroupSpec> specs;
  for (const PlannedGroup& planned : plan) {
    WEFT_ASSIGN_OR_RETURN(GroupSpec spec, SpecifyGroup(planned.name(), planned.parameters, policy, shard_size,
                                                       buckets.BucketsOf(planned.parameters), bucket_count));
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<size_t> ImageBytes(const std::vector<GroupSpec>& specs) {
  std::vector<size_t> bytes;
  bytes.reserve(specs.size());
  for (const GroupSpec& spec : specs) {
    bytes.push_back(static_cast<size_t>(spec.layout.gathered_elements()) * SizeOf(spec.dtypes.param));
  }
  return bytes;
}

// One for each group. They stay.
absl::StatusOr<std::vector<SharedBlock>> TakeImages(CommContext& context,
                                                    const std::vector<GroupSpec>& specs) {
  std::vector<SharedBlockRequest> requests;
  for (const size_t bytes : ImageBytes(specs)) requests.push_back({context.shard_group().ranks, bytes});
  CommEngine& engine = context.engine();
  return ShareBlocks(engine.bootstrap(), engine.heap(), requests, engine.options().timeout);
}

// For all of them in turn.
absl::Status TakeRegion(CommContext& context, const std::vector<PlannedGroup>& plan,
                        const std::vector<GroupSpec>& specs, const ShardingPolicy& policy) {
  std::vector<int> parents;
  parents.reserve(plan.size());
  for (const PlannedGroup& planned : plan) parents.push_back(planned.parent);
  CommEngine& engine = context.engine();
  Bootstrap& bootstrap = engine.bootstrap();
  SharedBlockRequest request;
  request.bytes = PlanRegionBytes(ModuleOrder(parents), ImageBytes(specs), policy);
  for (const int rank : context.shard_group().ranks) {
    if (bootstrap.node_map().SameNode(rank, bootstrap.rank())) request.holders.push_back(rank);
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<SharedBlock> region,
                        ShareBlocks(bootstrap, engine.heap(), {request}, engine.options().timeout));
  context.ShareImages(std::move(region.front()), static_cast<int>(request.holders.size()));
  return absl::OkStatus();
}

absl::Status CreateGroups(std::vector<GroupSpec> specs, std::vector<SharedBlock> images,
                          const ShardingPolicy& policy, const ShardLoader& loader, MadeGroups& made) {
  for (size_t i = 0; i < specs.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(made.groups.emplace_back(), ParamGroup::Create(*made.context, std::move(specs[i]),
                                                                         policy, std::move(images[i])));
  }
  for (const auto& group : made.groups) WEFT_RETURN_IF_ERROR(group->Load(loader));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MadeGroups> MakeGroups(CommEngine& engine, const std::vector<PlannedGroup>& plan,
                                      const ReplicateBuckets& buckets, ProcessGroup shard_group,
                                      const ShardingPolicy& policy, const ShardLoader& loader) {
  Bootstrap& bootstrap = engine.bootstrap();
  const absl::Duration timeout = engine.options().timeout;
  const int shard_size = shard_group.size();
  absl::StatusOr<std::vector<GroupSpec>> specs = SpecifyGroups(plan, buckets, policy, shard_size);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, specs.status(), timeout));
  MadeGroups made;
  WEFT_ASSIGN_OR_RETURN(made.residency, ChooseResidency(policy, bootstrap.node_map(), shard_size));
  CommContext::Options options = {policy.max_reduce_scatters, policy.max_all_reduces,
                                  policy.reshard_after_forward_size};
  options.shard_optimizer_over_replicas = policy.shard_optimizer_over_replicas;
  options.wire_compression = policy.wire_compression;
  options.in_place = made.residency.residency == Residency::kInPlace;
  absl::StatusOr<std::unique_ptr<CommContext>> context =
      CommContext::Create(engine, std::move(shard_group), buckets.groups, options);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, context.status(), timeout));
  made.context = *std::move(context);
  std::vector<SharedBlock> images(specs->size());
  if (made.residency.residency == Residency::kInPlace) {
    WEFT_ASSIGN_OR_RETURN(images, TakeImages(*made.context, *specs));
  } else if (made.residency.residency == Residency::kNodeShared) {
    WEFT_RETURN_IF_ERROR(TakeRegion(*made.context, plan, *specs, policy));
  }
  const absl::Status created = CreateGroups(*std::move(specs), std::move(images), policy, loader, made);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, created, timeout));
  return made;
}

}  // namespace weft
