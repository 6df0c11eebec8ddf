// The part of a report that holds the bytes of a run against the byte formulas.
#pragma once

#include <string>

#include "src/train/report/run_metrics.h"

namespace weft {

// HTML: for each collective the bytes that a step brought to rank 0 beside those of the formulas, and a mark
// on the collectives of which some step differs. A sentence if the metrics have no inputs of the formulas.
std::string FormulasOf(const RunMetrics& run);

}  // namespace weft
