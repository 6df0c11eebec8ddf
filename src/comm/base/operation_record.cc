#include "src/comm/base/operation_record.h"

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

absl::Status PartMismatch(const OperationRecord& record, int sender, const PartShape& part, int receiver,
                          const PartShape& expected) {
  return absl::FailedPreconditionError(
      absl::StrCat("lane ", record.lane_name, ": ", ToAbsl(Name(record.descriptor.kind)), ", sequence ",
                   record.descriptor.sequence, ": rank ", sender, " sends a part of shape ", ToString(part),
                   " to rank ", receiver, ", which expects ", ToString(expected),
                   "; a part must have the same shape at its sender and its receiver"));
}

}  // namespace weft
