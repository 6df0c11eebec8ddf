#include "sharding/make_groups.h"

#include <utility>

#include "sharding/group_spec.h"
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

// A block for the image of each group; empty ones where images are private.
absl::StatusOr<std::vector<SharedBlock>> TakeBlocks(CommContext& context, const std::vector<GroupSpec>& specs,
                                                    Residency residency) {
  if (residency == Residency::kPrivate) return std::vector<SharedBlock>(specs.size());
  std::vector<SharedBlockRequest> requests;
  for (const GroupSpec& spec : specs) {
    const size_t bytes = static_cast<size_t>(spec.layout.gathered_elements()) * SizeOf(spec.dtypes.param);
    requests.push_back({context.shard_group().ranks, bytes});
  }
  CommEngine& engine = context.engine();
  return ShareBlocks(engine.bootstrap(), engine.heap(), requests, engine.options().timeout);
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
  options.in_place = made.residency.residency == Residency::kInPlace;
  WEFT_ASSIGN_OR_RETURN(made.context,
                        CommContext::Create(engine, std::move(shard_group), buckets.groups, options));
  WEFT_ASSIGN_OR_RETURN(std::vector<SharedBlock> images,
                        TakeBlocks(*made.context, *specs, made.residency.residency));
  const absl::Status created = CreateGroups(*std::move(specs), std::move(images), policy, loader, made);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, created, timeout));
  return made;
}

}  // namespace weft
