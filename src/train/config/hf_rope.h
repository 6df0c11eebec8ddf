// Reader and writer of the rotary embedding in a config.json of Hugging Face: the older keys rope_theta and
// rope_scaling, and the newer rope_parameters.
#pragma once

#include <optional>
#include <string>

#include <absl/status/statusor.h>

#include "src/train/files/json.h"
#include "weft/nn/llama_config.h"

namespace weft {

struct RopeSettings {
  double theta;
  std::optional<RopeScaling> scaling;

  bool operator==(const RopeSettings&) const = default;
};

// Reads the settings of a model with config.head_dim and config.max_positions. Versions of transformers
// prefer different ones of the keys, so all of them must agree. Errors: kDataLoss, kUnimplemented; they name
// path and key.
absl::StatusOr<RopeSettings> ReadHfRope(const Json& json, const std::string& path, const LlamaConfig& config);

// Sets the keys for older and newer versions of transformers.
void SetHfRope(const LlamaConfig& config, Json& json);

// The double whose decimal form is the shortest that reads back as `value`: 1e-05, not 9.999999747378752e-06.
double ShortestDouble(float value);

}  // namespace weft
