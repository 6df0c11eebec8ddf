// Measurement of the costs of computation on this machine.
#pragma once

#include <optional>

#include <absl/status/statusor.h>

#include "src/train/planner/costs.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama_config.h"

namespace weft {

// Times of the parts of `model` for `shape`, with all `cores` busy: as many models compute at once as there
// are cores for their threads. With `lora`, adapters alone are trained. Takes about two seconds, and a model
// of two layers for each.
// Errors: those of the model and of AddLora.
absl::StatusOr<MeasuredModel> MeasureModel(const LlamaConfig& model, const std::optional<LoraOptions>& lora,
                                           const PartShape& shape, int cores);

// Rates of one core with all `cores` busy. Takes about two seconds. The rate of the network stack is left as
// it is.
CoreRates MeasureRates(int cores);

}  // namespace weft
