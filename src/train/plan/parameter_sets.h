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

// A parameter group of the optimizer, beside its default one. The first group that matches counts.
struct OptimizerGroup {
  ParameterSet set;
  std::function<bool(const Parameter&)> matches;
  bool decays;  // True if weight decay applies.
};
std::vector<OptimizerGroup> OptimizerGroupsOf(const RunPlan& plan);

// True for the matrices that Muon updates: those of the decoder layers, but neither the embedding, the head,
// nor parameters of indexers or adapters.
bool IsHiddenMatrix(const Parameter& parameter);

}  // namespace weft
