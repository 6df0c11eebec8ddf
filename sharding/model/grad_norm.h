// Gradient norms of fp32 masters from sums of squares, which groups may contribute one after the other.
//
// Thread safety: free functions. Collective: NormsOfSquares, by all ranks of the model.
#pragma once

#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "sharding/group/param_group.h"
#include "sharding/model/model_scalars.h"
#include "sharding/pipeline/pipeline_lanes.h"
#include "weft/core/reproducible_sum.h"
#include "weft/sharding/gradient_norm.h"

namespace weft {

// Adds the squares of a group's reduced gradients that this rank counts to `squares`, by set: without those
// that another replica counts. REQUIRES: an fp32 master.
void AddSquares(const ParamGroup& group, absl::Span<const ClipSet> sets,
                std::vector<ReproducibleSum>& squares);

// The norms of each set, of the squares of all ranks.
absl::StatusOr<std::vector<GradientNorm>> NormsOfSquares(std::vector<ReproducibleSum> squares,
                                                         absl::Span<const ClipSet> sets,
                                                         ModelScalars& scalars);

}  // namespace weft
