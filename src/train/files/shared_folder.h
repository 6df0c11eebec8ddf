// Check that ranks share the folder of an output.
//
// Note [Shared output folders]
// Problem: rank 0 creates the files of a checkpoint or an export, and other ranks write their parts into
//   them. If the folder is a local one of each host, they fail at the first save, or after the last step.
// Rule: before the first step, rank 0 creates a file in a staging folder, and every rank that will write
//   opens it by its name. All ranks return the same error if one of them cannot.
// Why it suffices: the path has a random part, so no other folder has a file of this path.
// Without it: a run trains for days and cannot save.
#pragma once

#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Checks that each rank with `writes` can update a file that rank 0 creates in the staging folder `staged`.
// `staged`: on rank 0, also the error of making it, which fails all ranks. The caller removes the folder.
// A network file system may show the file late: a rank looks for it for three seconds, and at most half of
// `timeout`.
// Errors: kNotFound (a rank has another folder; names the file), kPermissionDenied, kUnavailable, kDataLoss,
//   and those of AgreeOnStatus.
// Collective: all ranks.
absl::Status CheckIsShared(Bootstrap& bootstrap, const absl::StatusOr<std::string>& staged, bool writes,
                           absl::Duration timeout);

}  // namespace weft
