#include "src/mesh/base/wire_checks.h"

#include "weft/core/status.h"

namespace weft::internal {
namespace {

absl::Status CheckPeer(int peer, int ranks) {
  if (peer >= 0 && peer < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("message to or from rank ", peer, " of ", ranks));
}

}  // namespace

absl::Status CheckEnvelope(int peer, int ranks, int tag, int max_tag) {
  WEFT_RETURN_IF_ERROR(CheckPeer(peer, ranks));
  if (tag >= 0 && tag <= max_tag) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("message tag ", tag, " is outside [0, ", max_tag, "]"));
}

absl::Status CheckNote(int peer, int ranks, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckPeer(peer, ranks));
  if (bytes <= WireLink::kMaxNoteBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("note of ", bytes, " bytes: at most ", WireLink::kMaxNoteBytes, " fit"));
}

absl::Status CheckLength(size_t expected, WireLink::Length length, size_t sent) {
  const bool at_most = length == WireLink::Length::kAtMost;
  if (sent == expected || (at_most && sent < expected)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a receive of ", at_most ? "at most " : "", expected, " bytes met a message of ", sent));
}

}  // namespace weft::internal
