// Agreement of all ranks on what they run. Ranks with different flags, data or weights would train without an
// error, to a wrong result.
#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/train/plan/inputs.h"
#include "weft/mesh/bootstrap.h"
#include "weft/train/config.h"

namespace weft {

inline constexpr const char* kNotGiven = "not given";

// A property of a run that must be equal on all ranks.
struct RunProperty {
  std::string name;  // A flag with its dashes, or a description such as "data of --data".
  std::string value;
  bool fixed = false;              // Must also be equal when the run is resumed.
  std::string absent = kNotGiven;  // The value in checkpoints that lack the property.
};

// All flags that change the result or the collectives of a run, the model's configuration, and a digest of
// the data and weights: names relative to their folder, sizes, and samples of their content. Paths of outputs
// and of inputs are left out: hosts may mount one folder at different places.
// Errors: those of reading data and weights.
absl::StatusOr<std::vector<RunProperty>> PropertiesOf(const TrainConfig& config, const TrainInputs& inputs);

// The version of weft, the model's configuration, and a digest of its weights. Errors: those of reading
// weights.
absl::StatusOr<std::vector<RunProperty>> PropertiesOf(const ModelInputs& inputs);

// Compares the properties of all ranks. Returns the same status on all of them.
// Collective: all ranks.
// Errors: kInvalidArgument (a property whose name is a flag differs), kDataLoss (only others differ: version,
//   config.json, data or weights); both name each property that differs, its values and the ranks.
//   kDeadlineExceeded.
absl::Status AgreeOnProperties(Bootstrap& bootstrap, const std::vector<RunProperty>& properties,
                               absl::Duration timeout);

// Agrees on the error that caused a failure, rather than on a kAborted that followed from it. A
// kDeadlineExceeded is returned at once, as the agreement would wait for the same missing rank.
// Collective: all ranks.
absl::Status AgreeOnCause(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout);

}  // namespace weft
