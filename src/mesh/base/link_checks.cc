#include "src/mesh/base/link_checks.h"

#include "weft/core/status.h"

namespace weft::internal {
namespace {

absl::Status CheckPeer(int peer, int ranks) {
  if (peer >= 0 && peer < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("peer rank ", peer, " of a message is outside [0, ", ranks, ")"));
}

}  // namespace

absl::Status CheckEnvelope(int peer, int ranks, int tag, int max_tag) {
  WEFT_RETURN_IF_ERROR(CheckPeer(peer, ranks));
  if (tag >= 0 && tag <= max_tag) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("message tag ", tag, " is outside [0, ", max_tag, "]"));
}

absl::Status CheckControlMessage(int peer, int ranks, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckPeer(peer, ranks));
  if (bytes <= WireLink::kMaxControlMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("control message of ", bytes, " bytes: the maximum is ",
                                                 WireLink::kMaxControlMessageBytes));
}

absl::Status CheckLength(size_t expected, WireLink::Length length, size_t sent) {
  const bool at_most = length == WireLink::Length::kAtMost;
  if (sent == expected || (at_most && sent < expected)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a receive of ", at_most ? "at most " : "", expected,
                                          " bytes matched a message of ", sent,
                                          " bytes: sender and receiver disagree on the length"));
}

}  // namespace weft::internal
