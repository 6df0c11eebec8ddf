// Adapters of a sharded model, added to its weights.
#pragma once

#include <absl/status/status.h>

#include "weft/sharding/fully_shard.h"

namespace weft {

// Adds scaling * B A of each adapter to this rank's shards of the weights. The model with its adapters is no
// longer of use then. Collective: all ranks.
absl::Status MergeAdapters(ShardedModel& model, float scaling);

}  // namespace weft
