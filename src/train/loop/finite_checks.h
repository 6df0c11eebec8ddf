// Errors of a run whose losses, gradients or weights are not finite. They name the step and the remedies.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "weft/sharding/shard_view.h"
#include "weft/train/config.h"
#include "weft/train/metrics.h"

namespace weft {

// All return kOutOfRange. The remedies are those that the options allow.

// The loss of an evaluation after `step`, which the run has done.
absl::Status CheckEvalLoss(int64_t step, double loss, const OptimizerOptions& optimizer);
// The same for a run that does no step: the weights are those that it was given.
absl::Status CheckLossOfGivenWeights(int64_t step, double loss, const TrainConfig& config);

// An error once more steps were skipped than --max-skipped-steps allows, or if the loss of the evaluation is
// not finite. Losses and gradient norms are the same on all ranks, so all ranks return the same status.
absl::Status CheckFinite(const StepMetrics& metrics, const OptimizerOptions& optimizer);

// Checks this rank's shards.
absl::Status CheckWeightsFinite(const std::vector<ShardView>& shards, int64_t step,
                                const OptimizerOptions& optimizer);

}  // namespace weft
