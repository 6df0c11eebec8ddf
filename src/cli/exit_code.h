// What the program's exit code says.
#pragma once

#include <absl/status/status.h>

namespace weft {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;         // Memory, a full disk, or a defect.
inline constexpr int kExitBadUsage = 2;       // The command line or the configuration.
inline constexpr int kExitBadFile = 3;        // A file that cannot be used, or written.
inline constexpr int kExitNotFinite = 4;      // The loss, the gradient norm or a weight is infinite or NaN.
inline constexpr int kExitRankMissing = 86;   // A rank did not come in time, or failed.
inline constexpr int kExitInterrupted = 130;  // By a signal, as shells say it.

int ExitCodeOf(const absl::Status& status);

}  // namespace weft
