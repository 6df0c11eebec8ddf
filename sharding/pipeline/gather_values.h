// Gathering of fp32 values of any size through a bounded window of node memory.
//
// Each function waits for its result. Thread safety: none.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/types/span.h>

#include "sharding/pipeline/comm_context.h"

namespace weft {

// Gathers the values of all ranks of the shard group of `lanes`, end to end, into `all`. `counts`: elements
// of each rank. `first_only`: only the group's first rank receives them. Collective: by the shard group.
absl::Status GatherShardValues(CommContext& context, const PipelineLanes& lanes, const std::string& label,
                               const float* own, float* all, absl::Span<const int64_t> counts,
                               bool first_only);
// Gathers the values of a bucket's replicas on all of them. REQUIRES: replicas share the optimizer.
// Collective: by the bucket's replicate group.
absl::Status GatherReplicaValues(CommContext& context, const std::string& label, int bucket, const float* own,
                                 float* all, absl::Span<const int64_t> counts);

}  // namespace weft
