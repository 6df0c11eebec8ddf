// Hash of a model's weights (weights_hash.h) from the shards of all ranks, and the comparison of replicas.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/mesh/bootstrap.h"
#include "weft/nn/module.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// A rank's digest of its elements of each parameter, by the parameter's name. Ranks have the same names.
using ShardDigests = std::map<std::string, uint64_t>;

// Checks that ranks of different replicas that hold the same shard have the same digests. `digests`: of all
// ranks; `shard_size` consecutive ranks hold one replica.
// Errors: kInternal (names a parameter and the ranks that differ: the ones in the minority, or all if no
// value has a majority).
absl::Status CompareReplicas(absl::Span<const ShardDigests> digests, int shard_size);

// Compares the replicas, and returns the hash of the weights.
// Collective: all ranks. Errors: those of CompareReplicas, kDeadlineExceeded.
absl::StatusOr<uint64_t> HashShards(Bootstrap& bootstrap, Module& model, const std::vector<ShardView>& shards,
                                    int shard_size, absl::Duration timeout);

}  // namespace weft
