#include <algorithm>

#include "weft/core/status.h"
#include "weft/sharding/residency.h"

namespace weft {
namespace {

bool StayOnTheirNodes(const NodeMap& nodes, int shard_size) {
  for (int rank = 0; rank < nodes.size(); ++rank) {
    if (!nodes.SameNode(rank, rank / shard_size * shard_size)) return false;
  }
  return true;
}

// Why shards cannot be the images; empty if they can.
std::string WhyNotInPlace(const ShardingPolicy& policy, absl::Span<const DType> param_dtypes,
                          const NodeMap& nodes, int shard_size) {
  if (shard_size == 1) return "a shard group of one rank shares nothing";
  if (!policy.zero_copy) return "zero copy is off: shards are not the parameters";
  if (policy.reshard_after_forward_size > 1) {
    return absl::StrCat("reshard_after_forward_size is ", policy.reshard_after_forward_size,
                        ": each rank keeps a part of an image of its own");
  }
  const auto narrow = [](DType dtype) { return dtype != DType::kF32; };
  if (std::any_of(param_dtypes.begin(), param_dtypes.end(), narrow)) {
    return "not all parameters are computed with in f32, as shards are kept";
  }
  return StayOnTheirNodes(nodes, shard_size) ? "" : "shard groups span nodes";
}

}  // namespace

std::string_view Name(Residency residency) {
  return residency == Residency::kInPlace ? "in place" : "private";
}

std::string ResidencyChoice::ToString() const { return absl::StrCat(ToAbsl(Name(residency)), ": ", reason); }

absl::StatusOr<ResidencyChoice> ChooseResidency(const ShardingPolicy& policy,
                                                absl::Span<const DType> param_dtypes, const NodeMap& nodes,
                                                int shard_size) {
  if (policy.node_shared == NodeShared::kOff) {
    return ResidencyChoice{Residency::kPrivate, "node sharing is off"};
  }
  std::string obstacle = WhyNotInPlace(policy, param_dtypes, nodes, shard_size);
  if (obstacle.empty()) {
    return ResidencyChoice{
        Residency::kInPlace,
        "each shard group is on one node, where its shards are the one copy of the weights"};
  }
  if (policy.node_shared == NodeShared::kAuto) {
    return ResidencyChoice{Residency::kPrivate, std::move(obstacle)};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "one copy of the weights a node is asked for, but ", obstacle,
      ": ask for it where it can be (auto), or not at all (off), or change what stands in the way"));
}

}  // namespace weft
