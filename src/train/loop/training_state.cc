#include "src/train/loop/training_state.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/files/model_folder.h"
#include "src/train/plan/parameter_sets.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Names in a checkpoint, besides kModelFiles, kIndexerFiles and kAdapterFiles.
constexpr const char* kOptimizerFiles = "optimizer";
constexpr const char* kIndexerOptimizerFiles = "indexer_optimizer";
constexpr const char* kAdapterOptimizerFiles = "adapter_optimizer";
constexpr const char* kOptimizerSteps = "optimizer_steps";
constexpr const char* kLossScaleExponent = "loss_scale_exponent";
constexpr const char* kLossScaleGrowthSteps = "loss_scale_growth_steps";

// Suffix of an optimizer's state in the files of a checkpoint.
std::string SuffixOf(const std::string& state_name) { return "." + state_name; }

absl::Status LoadLossScale(const Checkpoint& checkpoint, LossScaler* scaler) {
  const std::map<std::string, int64_t>& counts = checkpoint.counts();
  // A run that was not in f16, or had a fixed scale, has saved none: the scale starts anew.
  if (scaler == nullptr || !counts.contains(kLossScaleExponent)) return absl::OkStatus();
  const auto count = [&](const char* name) { return counts.contains(name) ? counts.at(name) : -1; };
  const absl::Status valid =
      scaler->SetState({.exponent = count(kLossScaleExponent), .growth_steps = count(kLossScaleGrowthSteps)});
  return valid.ok() ? valid
                    : absl::DataLossError(
                          absl::StrCat("the checkpoint '", checkpoint.folder(), "' has ", valid.message()));
}

}  // namespace

ShardLoader LoadWeights(const Checkpoint& checkpoint, const RunPlan& plan, const ShardLoader& inputs) {
  return LoadBySet(plan.adapters ? inputs : checkpoint.Loader(kModelFiles), checkpoint.Loader(kIndexerFiles),
                   checkpoint.Loader(kAdapterFiles));
}

CheckpointState SavedState(const TrainingState& state, int64_t step) {
  CheckpointState saved;
  saved.step = step;
  ShardSets weights = SplitIntoSets(state.model.Shards());
  if (state.plan.adapters) weights.llama.clear();  // It does not change.
  saved.arrays = {{kModelFiles, "", weights.llama},
                  {kIndexerFiles, "", weights.indexers},
                  {kAdapterFiles, "", weights.adapters}};
  ShardedOptimizer& optimizer = state.optimizer;
  for (size_t i = 0; i < optimizer.state_names().size(); ++i) {
    const std::string suffix = SuffixOf(optimizer.state_names()[i]);
    ShardSets values = SplitIntoSets(optimizer.State(i));
    saved.arrays.push_back({kOptimizerFiles, suffix, std::move(values.llama)});
    saved.arrays.push_back({kIndexerOptimizerFiles, suffix, std::move(values.indexers)});
    saved.arrays.push_back({kAdapterOptimizerFiles, suffix, std::move(values.adapters)});
  }
  const std::vector<ShardView> shards = state.model.Shards();
  const std::vector<int64_t> updates = optimizer.StepsOfShards();
  for (size_t i = 0; i < updates.size(); ++i) {
    if (!shards[i].parameter->requires_grad) continue;
    saved.counts_of_parameters[shards[i].parameter->name] = updates[i];
  }
  saved.counts[kOptimizerSteps] = optimizer.steps();
  if (state.loss_scaler != nullptr && state.loss_scaler->is_dynamic()) {
    const LossScaler::State& scale = state.loss_scaler->state();
    saved.counts[kLossScaleExponent] = scale.exponent;
    saved.counts[kLossScaleGrowthSteps] = scale.growth_steps;
  }
  return saved;
}

absl::Status LoadTrainingState(const Checkpoint& checkpoint, const TrainingState& state) {
  ShardedOptimizer& optimizer = state.optimizer;
  for (size_t i = 0; i < optimizer.state_names().size(); ++i) {
    const std::string suffix = SuffixOf(optimizer.state_names()[i]);
    const ShardLoader loader = LoadBySet(checkpoint.Loader(kOptimizerFiles, suffix),
                                         checkpoint.Loader(kIndexerOptimizerFiles, suffix),
                                         checkpoint.Loader(kAdapterOptimizerFiles, suffix));
    WEFT_RETURN_IF_ERROR(FillShards(optimizer.State(i), loader));
  }
  const auto steps = checkpoint.counts().find(kOptimizerSteps);
  if (steps == checkpoint.counts().end()) {
    return absl::DataLossError(absl::StrCat("the checkpoint '", checkpoint.folder(), "' has no count '",
                                            kOptimizerSteps, "': it is not one of weft train"));
  }
  optimizer.set_steps(steps->second);
  std::vector<int64_t> updates;
  for (const ShardView& shard : state.model.Shards()) {
    const auto found = checkpoint.counts_of_parameters().find(shard.parameter->name);
    updates.push_back(found == checkpoint.counts_of_parameters().end() ? steps->second : found->second);
  }
  optimizer.SetStepsOfShards(updates);
  return LoadLossScale(checkpoint, state.loss_scaler);
}

}  // namespace weft
