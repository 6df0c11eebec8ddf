// Residency of images: where the gathered parameters of a sharded model lie. One choice for all groups.
//
// Pure.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"
#include "weft/mesh/share_domain.h"
#include "weft/sharding/policy.h"

namespace weft {

enum class Residency : uint8_t {
  kPrivate,     // Every rank gathers images of its own.
  kInPlace,     // The ranks of a shard group, in one share domain, keep shards in permanent shared images.
  kNodeShared,  // The ranks of a shard group in each share domain gather images into memory that they share.
};

// "private", "in place", "shared on each node" (or in each NUMA node: see ShareDomain).
std::string_view Name(Residency residency);

struct ResidencyChoice {
  Residency residency = Residency::kPrivate;
  std::string reason;  // For the user.

  // "in place: one copy of the weights in each shard group".
  std::string ToString() const;
};

// True if any shard group, of `shard_size` consecutive ranks, spans several nodes.
bool SpanNodes(const NodeMap& nodes, int shard_size);

// Chooses for shard groups of `shard_size` consecutive ranks; the same on all ranks. `domains`: of the engine
// (CommEngine::share_domains), or those of ChooseShareDomains. Reads reshard_after_forward_size; a caller
// with sizes of its own for some groups gives the largest. Images are private if mesh_of is set; a caller
// whose parameters all have one mesh resets it.
// Errors: kInvalidArgument (NodeShared::kOn where images cannot be shared; says why, and the remedy).
absl::StatusOr<ResidencyChoice> ChooseResidency(const ShardingPolicy& policy, const ShareDomains& domains,
                                                int shard_size);

// Returns `policy` with its prefetch depth set: kPrefetchOverNodes if the depth is unset and shard groups
// span nodes, where one more gather in flight keeps the wire busy while a rank computes and takes one more
// image.
ShardingPolicy ResolvePrefetch(ShardingPolicy policy, const NodeMap& nodes, int shard_size);

}  // namespace weft
