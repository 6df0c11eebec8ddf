// Properties of a run that must be equal on all ranks, and some of them also when the run is resumed: its
// flags, its model, digests of its data and weights.
#pragma once

#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/plan/inputs.h"
#include "weft/train/config.h"

namespace weft {

inline constexpr const char* kNotGiven = "not given";

// A property of a run that must be equal on all ranks.
struct RunProperty {
  std::string name;  // A flag with its dashes, or a description such as "data of --data".
  std::string value;
  bool fixed = false;              // Must also be equal when the run is resumed.
  std::string absent = kNotGiven;  // The value in checkpoints that lack the property.
  // A resumed run says this if the value of a property that is not fixed has changed. Empty: it says
  // nothing.
  std::string if_changed = "";
};

// All flags that change the result or the collectives of a run, the model's configuration, and a digest of
// the data and weights: names relative to their folder, sizes, and samples of their content. Paths of outputs
// and of inputs are left out: hosts may mount one folder at different places.
// Errors: those of reading data and weights.
absl::StatusOr<std::vector<RunProperty>> PropertiesOf(const TrainConfig& config, const TrainInputs& inputs);

// The version of weft, the model's configuration, and a digest of its weights. Errors: those of reading
// weights.
absl::StatusOr<std::vector<RunProperty>> PropertiesOf(const ModelInputs& inputs);

}  // namespace weft
