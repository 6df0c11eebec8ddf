// Inputs of the byte formulas (weft/sharding/byte_formulas.h) for the steps of a run, as its metrics record
// them, so that a report can compute the formulas without the run.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/files/json.h"
#include "src/train/plan/run_plan.h"
#include "weft/mesh/bootstrap.h"
#include "weft/sharding/byte_formulas.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {

struct ByteInputs {
  // Consecutive groups of parameters of the same shapes.
  struct Groups {
    int64_t count;
    std::vector<FlatParameter> parameters;
  };
  std::vector<Groups> groups;  // In the order of forward, the root's first.
  int64_t alignment = 1;       // Of parameters in an image, in elements: see FlatLayout::Make.
  ShardingPolicy policy;       // Its layout, dtypes, resharding, prefetch depth and optimizer only.
  StepShape shape;             // That of rank 0. Its ranks_per_node counts only if nodes are alike.
  bool spans_nodes = false;    // True if shard groups span nodes.
  bool has_even_nodes = true;  // True if all nodes have equally many consecutive ranks.
};

ByteInputs ByteInputsOf(const ShardedGroups& groups, const RunPlan& plan, const NodeMap& nodes);

Json ToJson(const ByteInputs& inputs);
// Errors: kDataLoss (names the key that is missing, of another type, or out of its range). The JSON may come
// from strangers.
absl::StatusOr<ByteInputs> ParseByteInputs(const Json& json);

// Costs of the steps of a run. If shard groups span nodes, the update of each step begins with the first
// gathers of the next one.
struct ExpectedCosts {
  StepCosts step;
  StepCosts after_evaluation;  // Of a step that follows one: it gathers for itself, too.
  StepCosts first_step;
};

// Errors: kDataLoss (there is no such layout).
absl::StatusOr<ExpectedCosts> CostsOf(const ByteInputs& inputs);

}  // namespace weft
