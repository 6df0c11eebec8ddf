#include "src/train/plan/parameter_sets.h"

#include <utility>

#include "weft/nn/lightning_indexer.h"
#include "weft/nn/linear.h"

namespace weft {
namespace {

// Parameters that are clipped and updated as the Llama's.
bool IsLlamaParameter(const Parameter& parameter) { return !IsIndexerParameter(parameter); }

bool IsVectorOfIndexer(const Parameter& parameter) {
  return IsIndexerParameter(parameter) && HasAtMostOneDim(parameter);
}

}  // namespace

ShardSets SplitIntoSets(const std::vector<ShardView>& shards) {
  ShardSets sets;
  for (const ShardView& shard : shards) {
    (IsLoraParameter(*shard.parameter)      ? sets.adapters
     : IsIndexerParameter(*shard.parameter) ? sets.indexers
                                            : sets.llama)
        .push_back(shard);
  }
  return sets;
}

ShardLoader LoadBySet(ShardLoader llama, ShardLoader indexers, ShardLoader adapters) {
  return [llama = std::move(llama), indexers = std::move(indexers), adapters = std::move(adapters)](
             const Parameter& parameter, int64_t start, int64_t count, float* out) {
    const ShardLoader& loader = IsLoraParameter(parameter)      ? adapters
                                : IsIndexerParameter(parameter) ? indexers
                                                                : llama;
    return loader(parameter, start, count, out);
  };
}

std::vector<ClipSet> ClipSetsOf(const RunPlan& plan) {
  std::vector<ClipSet> sets = {{IsLlamaParameter, plan.clip_grad_norm}};
  if (plan.indexers) sets.push_back({IsIndexerParameter, plan.clip_grad_norm});
  return sets;
}

void OptimizerGroups::Add(ParameterSet set, std::function<bool(const Parameter&)> matches,
                          const AdamWOptions& options) {
  groups.push_back({std::move(matches), options});
  sets.push_back(set);
}

OptimizerGroups OptimizerGroupsOf(const RunPlan& plan) {
  AdamWOptions undecayed = plan.adamw;
  undecayed.weight_decay = 0;
  const AdamWOptions& of_vectors = plan.decay == DecayScope::kMatrices ? undecayed : plan.adamw;
  OptimizerGroups result;
  // The first group that matches counts.
  if (plan.indexers) {
    result.Add(kIndexers, IsVectorOfIndexer, of_vectors);
    result.Add(kIndexers, IsIndexerParameter, plan.adamw);
  }
  result.Add(kLlama, HasAtMostOneDim, of_vectors);
  return result;
}

}  // namespace weft
