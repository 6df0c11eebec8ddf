// Control messages between nodes as bytes: credits, partial sums and failure notices. Signals
// (src/comm/messages/signal.h) and messages about late ranks (late_rank_messages.h) follow the byte of their
// kind.
#pragma once

#include <cstdint>
#include <type_traits>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/part_shape.h"
#include "weft/core/status.h"
#include "weft/mesh/wire_link.h"

namespace weft {

enum class ControlKind : uint8_t { kCredit, kFailure, kQuestion, kAnswer, kSignal, kPartial };

struct CreditMessage {
  ControlKind kind = ControlKind::kCredit;
  int32_t lane = 0;
  int32_t number = 0;
  int32_t slices = 0;
  uint64_t sequence = 0;  // That of the channel.
  PartShape part;
  Descriptor descriptor;
};
static_assert(std::is_trivially_copyable_v<CreditMessage> &&
              sizeof(CreditMessage) <= WireLink::kMaxControlMessageBytes);

// The text of the failure follows.
struct FailureHeader {
  ControlKind kind = ControlKind::kFailure;
  int32_t code = 0;
  int32_t origin = 0;  // The rank that failed first.
};

// The payload follows.
struct PartialHeader {
  ControlKind kind = ControlKind::kPartial;
  int32_t lane = 0;
  int32_t edge = 0;
  Descriptor descriptor;
};
static_assert(std::is_trivially_copyable_v<PartialHeader>);

// Errors of control messages that no rank of this version sends. `what`: "a credit message". `problem`: what
// it has, such as "the unknown kind 70".
inline absl::Status MalformedMessage(absl::string_view what, const WireLink::ControlMessage& message,
                                     absl::string_view problem) {
  return absl::InternalError(
      absl::StrCat(what, " from rank ", message.peer, " has ", problem, kSameVersionRemedy));
}
// `expected`: the number of bytes.
inline absl::Status WrongMessageLength(absl::string_view what, const WireLink::ControlMessage& message,
                                       absl::string_view expected) {
  return MalformedMessage(what, message, absl::StrCat(message.bytes.size(), " bytes, expected ", expected));
}

}  // namespace weft
