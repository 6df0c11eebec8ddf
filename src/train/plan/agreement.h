// Agreement of all ranks on what they run. Ranks with different flags, data or weights would train without an
// error, to a wrong result.
#pragma once

#include <vector>

#include <absl/status/status.h>
#include <absl/time/time.h>

#include "src/train/plan/run_properties.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

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
