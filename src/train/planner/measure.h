// Measurement of the costs of computation on this machine.
#pragma once

#include <absl/status/statusor.h>

#include "src/train/planner/costs.h"
#include "weft/nn/llama_config.h"

namespace weft {

// Times of the parts of `model` for `shape`, with all `cores` busy: as many models compute at once as there
// are cores for their threads. Takes about two seconds, and a model of two layers for each.
// Errors: those of the model.
absl::StatusOr<MeasuredModel> MeasureModel(const LlamaConfig& model, const PartShape& shape, int cores);

// Rates of one core with all `cores` busy. Takes about two seconds. The rates of products are left as they
// are.
CoreRates MeasureRates(int cores);

}  // namespace weft
