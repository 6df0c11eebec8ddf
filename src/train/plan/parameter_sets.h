// Sets of a model's parameters that are clipped, updated and saved apart: the Llama's, and those of the
// indexers of sparse attention. So the indexers' loss never reaches the Llama. Adapters are saved apart too;
// as the Llama is frozen then, they are clipped and updated in its place.
//
// Pure. Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/train/plan/run_plan.h"
#include "weft/nn/parameter.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/sharding/gradient_norm.h"
#include "weft/sharding/shard_view.h"

namespace weft {

enum ParameterSet : uint8_t { kLlama, kIndexers };

struct ShardSets {
  std::vector<ShardView> llama;
  std::vector<ShardView> indexers;  // Empty for dense attention.
  std::vector<ShardView> adapters;  // Empty without adapters.
};
ShardSets SplitIntoSets(const std::vector<ShardView>& shards);

// A loader that takes the parameters of each set from a loader of its own.
ShardLoader LoadBySet(ShardLoader llama, ShardLoader indexers, ShardLoader adapters);

// The sets to clip, by ParameterSet. Dense attention has the first only.
std::vector<ClipSet> ClipSetsOf(const RunPlan& plan);

// Parameter groups of the optimizer beside its default one, and the set of each, that of the default first.
struct OptimizerGroups {
  std::vector<AdamWParamGroup> groups;
  std::vector<ParameterSet> sets = {kLlama};

  void Add(ParameterSet set, std::function<bool(const Parameter&)> matches, const AdamWOptions& options);
};
OptimizerGroups OptimizerGroupsOf(const RunPlan& plan);

}  // namespace weft
