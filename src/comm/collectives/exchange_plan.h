// Plans of exchanges, in which every rank has a part for every other. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/collectives/collective_plan.h"
#include "weft/mesh/process_group.h"

namespace weft {

// `sends` and `receives` by group rank; undefined views are empty parts. Errors: kInvalidArgument (names the
// part, and what is wrong with it).
absl::StatusOr<CollectivePlan> PlanExchange(const ProcessGroup& group, OpKind kind,
                                            std::vector<TensorView> sends, std::vector<TensorView> receives,
                                            DType dtype);

// What peers bring to this rank.
int64_t BroughtBytes(const ProcessGroup& group, const CollectivePlan& exchange);

// Parts end to end in rank order, as views.
std::vector<TensorView> PartsEndToEnd(void* memory, DType dtype, const std::vector<int64_t>& counts);

}  // namespace weft
