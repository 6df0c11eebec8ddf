#include "src/cli/exit_code.h"

namespace weft {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitBadUsage;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return kExitBadFile;
    case absl::StatusCode::kOutOfRange:
      return kExitNotFinite;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return kExitRankMissing;
    default:
      return kExitFailed;
  }
}

}  // namespace weft
