// Metrics and configuration of a run, as a report shows them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "src/train/plan/byte_inputs.h"

namespace weft {

struct RunMetrics {
  std::string name;           // The path of the metrics.
  std::vector<double> steps;  // Ascending.
  // The values of each key by step, NaN where it has none. Keys of objects are joined: "bytes.all_gather".
  std::map<std::string, std::vector<double>> values;
  // The keys and values of the configuration beside the metrics; empty without it.
  std::vector<std::pair<std::string, std::string>> configuration;

  // The costs that the byte formulas give to the steps from `first` on, an index of `steps`. A run has one
  // entry for each time that it was started; earlier versions wrote none.
  struct Formulas {
    size_t first;
    ByteInputs inputs;
    ExpectedCosts costs;
  };
  std::vector<Formulas> formulas;

  // The values of `key` that are finite, in the order of the steps. Empty if there are none.
  std::vector<double> FiniteValues(const std::string& key) const;
};

// Errors: kNotFound, kPermissionDenied, kDataLoss (a line that is not one of weft's, no line, or steps that
// do not ascend; names file and line).
absl::StatusOr<RunMetrics> ReadRunMetrics(const std::string& path);

}  // namespace weft
