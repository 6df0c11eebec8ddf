#include "weft/core/status.h"
#include "weft/sharding/residency.h"

namespace weft {
namespace {

bool SomeShareADomain(const NodeMap& domains, int shard_size) {
  for (int rank = 0; rank < domains.size(); ++rank) {
    for (int peer = rank / shard_size * shard_size; peer < rank; ++peer) {
      if (domains.SameNode(peer, rank)) return true;
    }
  }
  return false;
}

// A share domain in messages.
std::string_view Noun(ShareDomain kind) { return kind == ShareDomain::kNuma ? "NUMA node" : "node"; }

// Reason why ranks cannot share images; empty if they can.
std::string WhyPrivate(const ShardingPolicy& policy, const ShareDomains& domains, int shard_size) {
  if (shard_size == 1) return "a shard group of one rank shares nothing";
  if (!policy.is_zero_copy()) return "zero copy is off: shards are not the parameters";
  if (policy.reshard_after_forward_size > 1) {
    return absl::StrCat("reshard_after_forward_size is ", policy.reshard_after_forward_size,
                        ": each rank keeps a part of an image of its own");
  }
  if (policy.mesh_of) return "some parameters have a mesh of their own (mesh_of): each rank gathers images";
  if (domains.kind == ShareDomain::kNone) return "the share domain is none";
  if (SomeShareADomain(domains.map, shard_size)) return "";
  return absl::StrCat("no two ranks of a shard group share a ", ToAbsl(Noun(domains.kind)));
}

}  // namespace

std::string_view Name(Residency residency) {
  switch (residency) {
    case Residency::kPrivate:
      return "private";
    case Residency::kInPlace:
      return "in place";
    case Residency::kNodeShared:
      return "shared on each node";
  }
  return "unknown";
}

bool SpanNodes(const NodeMap& nodes, int shard_size) {
  for (int rank = 0; rank < nodes.size(); ++rank) {
    if (!nodes.SameNode(rank, rank / shard_size * shard_size)) return true;
  }
  return false;
}

std::string ResidencyChoice::ToString() const { return absl::StrCat(ToAbsl(Name(residency)), ": ", reason); }

absl::StatusOr<ResidencyChoice> ChooseResidency(const ShardingPolicy& policy, const ShareDomains& domains,
                                                int shard_size) {
  if (policy.node_shared == NodeShared::kOff) {
    return ResidencyChoice{Residency::kPrivate, "node sharing is off"};
  }
  std::string obstacle = WhyPrivate(policy, domains, shard_size);
  const absl::string_view noun = ToAbsl(Noun(domains.kind));
  if (obstacle.empty() && !SpanNodes(domains.map, shard_size)) {
    return ResidencyChoice{Residency::kInPlace,
                           absl::StrCat("each shard group is on one ", noun,
                                        ", and its ranks compute with one copy of the weights")};
  }
  if (obstacle.empty()) {
    return ResidencyChoice{Residency::kNodeShared,
                           absl::StrCat("shard groups span ", noun, "s, and the ranks on each ", noun,
                                        " gather into memory that they share")};
  }
  if (policy.node_shared == NodeShared::kAuto) {
    return ResidencyChoice{Residency::kPrivate, std::move(obstacle)};
  }
  return absl::InvalidArgumentError(absl::StrCat("sharing images on each node is required (on), but ",
                                                 obstacle, ": use auto or off, or remove the obstacle"));
}

ShardingPolicy ResolvePrefetch(ShardingPolicy policy, const NodeMap& nodes, int shard_size) {
  if (!policy.prefetch_depth.has_value()) {
    policy.prefetch_depth =
        SpanNodes(nodes, shard_size) ? ShardingPolicy::kPrefetchOverNodes : ShardingPolicy::kPrefetchOnANode;
  }
  return policy;
}

}  // namespace weft
