// Where the images of a sharded model lie: one choice for all of its groups, made when modules are wrapped.
//
// Pure. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"
#include "weft/sharding/policy.h"

namespace weft {

enum class Residency : uint8_t {
  kPrivate,     // Every rank has images of its own.
  kInPlace,     // The ranks of a shard group, on one node, write their shards into images that stay.
  kNodeShared,  // The ranks of a shard group that share a node gather images into memory that they share.
};

// "private", "in place", "shared on each node".
std::string_view Name(Residency residency);

struct ResidencyChoice {
  Residency residency = Residency::kPrivate;
  std::string reason;  // For people: why it is this one.

  // "in place: one copy of the weights in each shard group".
  std::string ToString() const;
};

// Whether some of the shard groups, of `shard_size` consecutive ranks, has ranks on several nodes.
bool SpanNodes(const NodeMap& nodes, int shard_size);

// For such groups. The same on all ranks. Errors: kInvalidArgument
// (NodeShared::kOn where images cannot be shared; says why, and the remedy).
absl::StatusOr<ResidencyChoice> ChooseResidency(const ShardingPolicy& policy, const NodeMap& nodes,
                                                int shard_size);

// `policy`, with its prefetch depth set if it was not, for the same groups: kPrefetchOverNodes where they
// span nodes. There one gather more is under way, so that the wire has something to go on with while a rank
// computes; it takes one image more.
ShardingPolicy ResolvePrefetch(ShardingPolicy policy, const NodeMap& nodes, int shard_size);

}  // namespace weft
