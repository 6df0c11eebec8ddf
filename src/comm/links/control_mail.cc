#include "src/comm/links/control_mail.h"

#include <algorithm>
#include <cstring>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "src/comm/base/named_ranks.h"
#include "src/comm/links/control_messages.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// A control message without a payload.
std::string_view KindOnly(const ControlKind& kind) {
  return {reinterpret_cast<const char*>(&kind), sizeof(kind)};
}

}  // namespace

absl::Status ControlMail::Send(int peer, std::string_view bytes) {
  ++counters_.control_messages;
  CountPeer(peer);
  return link_.SendControlMessage(peer, bytes);
}

void ControlMail::CountPeer(int peer) {
  peers_.insert(peer);
  counters_.wire_peers = std::max(counters_.wire_peers, static_cast<int64_t>(peers_.size()));
}

void ControlMail::TrySend(int peer, std::string_view bytes) {
  const absl::Status sent = Send(peer, bytes);
  static_cast<void>(sent);
}

absl::Status ControlMail::Handle(const WireLink::ControlMessage& message) {
  ControlKind kind{};
  std::memcpy(&kind, message.bytes.data(), sizeof(kind));
  if (kind == ControlKind::kFailure) return HandleFailure(message);
  if (kind == ControlKind::kSignal) return HandleSignal(message);
  WEFT_ASSIGN_OR_RETURN(LateRankAnswer answer,
                        ParseLateRanks(message.peer, std::string_view(message.bytes).substr(sizeof(kind))));
  if (kind == ControlKind::kQuestion) {
    questions_.push_back(answer.question);
  } else {
    answers_.push_back(std::move(answer));
  }
  return absl::OkStatus();
}

absl::Status ControlMail::HandleFailure(const WireLink::ControlMessage& message) {
  FailureHeader header;
  if (message.bytes.size() < sizeof(header))
    return WrongMessageLength("a failure notice", message, absl::StrCat(sizeof(header), " and more"));
  std::memcpy(&header, message.bytes.data(), sizeof(header));
  constexpr auto kGreatestCode = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  if (header.code < 1 || header.code > kGreatestCode)
    return MalformedMessage("a failure notice", message, absl::StrCat("the status code ", header.code));
  if (!failure_) {
    failure_ = {header.origin, absl::Status(static_cast<absl::StatusCode>(header.code),
                                            message.bytes.substr(sizeof(header)))};
  }
  return absl::OkStatus();
}

absl::Status ControlMail::HandleSignal(const WireLink::ControlMessage& message) {
  if (message.bytes.size() == sizeof(ControlKind))
    return WrongMessageLength("a message signal", message, "more");
  signals_.push_back({message.peer, message.bytes.substr(sizeof(ControlKind))});
  return absl::OkStatus();
}

absl::Status ControlMail::SendSignal(int peer, std::string_view bytes) {
  return Send(peer, absl::StrCat(ToAbsl(KindOnly(ControlKind::kSignal)), ToAbsl(bytes)));
}

void ControlMail::BroadcastFailure(const NodeLink::FailureNotice& notice, const std::vector<int>& ranks) {
  const absl::Status& cause = notice.cause;
  FailureHeader header;
  header.code = static_cast<int32_t>(cause.code());
  header.origin = notice.rank;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(CutText(ToStd(cause.message()), WireLink::kMaxControlMessageBytes - sizeof(header)));
  for (int rank : ranks) TrySend(rank, bytes);
}

void ControlMail::Ask(const LateRankQuestion& question) {
  TrySend(question.peer, absl::StrCat(ToAbsl(KindOnly(ControlKind::kQuestion)), EncodeLateRanks(question)));
}

void ControlMail::Answer(int peer, const LateRankAnswer& answer) {
  TrySend(peer, absl::StrCat(ToAbsl(KindOnly(ControlKind::kAnswer)), EncodeLateRanks(answer)));
}

}  // namespace weft
