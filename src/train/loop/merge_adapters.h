// Adapters of a sharded model, added to its weights.
#pragma once

#include <absl/status/status.h>

#include "weft/sharding/fully_shard.h"

namespace weft {

// Adds scaling * B A of each adapter to this rank's shards of the weights (ShardedModel::CurrentShards).
// Calls BeginWriting first: see Note [When shards may be written]. The adapters keep their values, so a later
// pass would apply them twice: training cannot go on.
// REQUIRES: the model has adapters. Collective: all ranks, outside of passes.
absl::Status MergeAdapters(ShardedModel& model, float scaling);

}  // namespace weft
