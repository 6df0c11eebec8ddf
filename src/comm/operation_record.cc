#include "src/comm/operation_record.h"

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

std::string_view Name(OperationState state) {
  switch (state) {
    case OperationState::kQueued:
      return "queued";
    case OperationState::kRunning:
      return "running";
    case OperationState::kReady:
      return "ready";
    case OperationState::kReleased:
      return "released";
    case OperationState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string Describe(const OperationRecord& record) {
  const std::string label = record.label.empty() ? "" : absl::StrCat(" '", record.label, "'");
  return absl::StrCat(ToAbsl(Name(record.descriptor.kind)), label, " on lane ", record.lane_name, " (",
                      ToString(record.descriptor), "), ", ToAbsl(Name(record.State())));
}

}  // namespace weft
