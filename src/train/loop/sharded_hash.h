// Hash of a model's weights (weights_hash.h) from the shards of all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"
#include "weft/nn/module.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// `shard_size` consecutive ranks hold one replica. Collective: all ranks.
// Errors: kInternal (replicas differ; names a parameter), kDeadlineExceeded.
absl::StatusOr<uint64_t> HashShards(Bootstrap& bootstrap, Module& model, const std::vector<ShardView>& shards,
                                    int shard_size, absl::Duration timeout);

}  // namespace weft
