#include "sharding/plan/replicate_buckets.h"

#include <algorithm>
#include <optional>
#include <string>

#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft {
namespace {

int OwnRank(const ProcessGroup& group) { return group.ranks[static_cast<size_t>(group.group_rank)]; }

// Replicas of a shard belong to different shard groups.
absl::Status CheckReplicas(const Parameter& parameter, const ProcessGroup& group, const ProcessGroup& shard) {
  const int rank = OwnRank(shard);
  const auto invalid = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the replicate group of parameter '", parameter.name,
                                                   "', ranks ", absl::StrJoin(group.ranks, " "), ", ", why));
  };
  const auto place = static_cast<size_t>(group.group_rank);
  if (group.group_rank < 0 || place >= group.ranks.size() || group.ranks[place] != rank) {
    return invalid(absl::StrCat("does not have rank ", rank, " at its place ", group.group_rank,
                                ": name the group that the calling rank belongs to"));
  }
  for (const int member : group.ranks) {
    if (member == rank || std::count(shard.ranks.begin(), shard.ranks.end(), member) == 0) continue;
    return invalid(absl::StrCat("has ranks ", rank, " and ", member,
                                " of one shard group, which hold different shards: replicate over ranks of "
                                "other shard groups only"));
  }
  return absl::OkStatus();
}

int BucketFor(const ProcessGroup& group, std::vector<ProcessGroup>& groups) {
  const auto same = std::find_if(groups.begin(), groups.end(),
                                 [&group](const ProcessGroup& known) { return known.ranks == group.ranks; });
  if (same != groups.end()) return static_cast<int>(same - groups.begin());
  groups.push_back(group);
  return static_cast<int>(groups.size()) - 1;
}

}  // namespace

std::vector<int> ReplicateBuckets::BucketsOf(
    const std::vector<std::shared_ptr<Parameter>>& parameters) const {
  std::vector<int> buckets;
  buckets.reserve(parameters.size());
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    buckets.push_back(bucket_of.at(parameter.get()));
  }
  return buckets;
}

absl::StatusOr<ReplicateBuckets> PlanReplicateBuckets(
    const std::vector<std::shared_ptr<Parameter>>& parameters, const ShardingPolicy& policy,
    const ProcessGroup& shard, const ProcessGroup& replicate) {
  ReplicateBuckets buckets;
  buckets.groups.push_back(replicate);
  for (const std::shared_ptr<Parameter>& parameter : parameters) {
    if (!policy.replicate_group) {
      buckets.bucket_of.emplace(parameter.get(), 0);
      continue;
    }
    const ProcessGroup group =
        policy.replicate_group(*parameter).value_or(ProcessGroup{"unreplicated", {OwnRank(shard)}, 0});
    WEFT_RETURN_IF_ERROR(CheckReplicas(*parameter, group, shard));
    buckets.bucket_of.emplace(parameter.get(), BucketFor(group, buckets.groups));
  }
  return buckets;
}

}  // namespace weft
