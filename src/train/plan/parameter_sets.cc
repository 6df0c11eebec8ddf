#include "src/train/plan/parameter_sets.h"

#include <utility>

#include "weft/nn/linear.h"
#include "weft/nn/sparse/lightning_indexer.h"
#include "weft/optim/sharded_optimizer.h"

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
  const double max_norm = plan.clip_grad_norm == 0 ? kNoClipping : plan.clip_grad_norm;
  std::vector<ClipSet> sets = {{IsLlamaParameter, max_norm}};
  if (plan.indexers) sets.push_back({IsIndexerParameter, max_norm});
  return sets;
}

std::vector<OptimizerGroup> OptimizerGroupsOf(const RunPlan& plan) {
  const bool vectors_decay = plan.decay == DecayScope::kAll;
  std::vector<OptimizerGroup> groups;
  if (plan.indexers) {
    groups.push_back({kIndexers, IsVectorOfIndexer, vectors_decay});
    groups.push_back({kIndexers, IsIndexerParameter, true});
  }
  groups.push_back({kLlama, HasAtMostOneDim, vectors_decay});
  return groups;
}

bool IsHiddenMatrix(const Parameter& parameter) {
  static const auto is_outside = NameContains({"embed_tokens", "lm_head"});
  return parameter.shape.size() == 2 && !IsIndexerParameter(parameter) && !IsLoraParameter(parameter) &&
         !is_outside(parameter);
}

}  // namespace weft
