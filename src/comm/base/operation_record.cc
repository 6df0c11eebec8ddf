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

std::string DescribeMessage(const OperationRecord& record) {
  const MessageRequest& message = *record.message;
  const bool is_send = record.descriptor.kind == OpKind::kSend;
  const std::string peer = message.peer == kAnySource ? "any rank" : absl::StrCat("rank ", message.peer);
  return absl::StrCat("of ", message.bytes, " bytes ", is_send ? "to " : "from ", peer, " (channel ",
                      message.channel, ", tag ", message.tag, ")");
}

std::string Describe(const OperationRecord& record) {
  const std::string label = record.label.empty() ? "" : absl::StrCat(" '", record.label, "'");
  if (record.message) {
    return absl::StrCat(ToAbsl(Name(record.descriptor.kind)), label, " ", DescribeMessage(record), ", ",
                        ToAbsl(Name(record.State())));
  }
  return absl::StrCat(ToAbsl(Name(record.descriptor.kind)), label, " on lane ", ToAbsl(record.lane_name),
                      " (", ToString(record.descriptor), "), ", ToAbsl(Name(record.State())));
}

absl::Status HasLeft(int rank, std::string_view missed, const OperationRecord& record) {
  return absl::AbortedError(
      absl::StrCat("rank ", rank, " destroyed its engine before it ", ToAbsl(missed), " ", Describe(record),
                   "; see the error of that rank. If it has none, give all ranks the same number of steps"));
}

absl::Status PartMismatch(const OperationRecord& record, int sender, const PartShape& part, int receiver,
                          const PartShape& expected) {
  return absl::FailedPreconditionError(
      absl::StrCat("lane ", ToAbsl(record.lane_name), ": ", ToAbsl(Name(record.descriptor.kind)),
                   ", sequence ", record.descriptor.sequence, ": rank ", sender, " sends a part of shape ",
                   ToString(part), " to rank ", receiver, ", which expects ", ToString(expected),
                   "; a part must have the same shape at its sender and its receiver"));
}

}  // namespace weft
