// Control messages of the scheduler: credits, partial sums, signals, failure notices and inquiries.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <absl/strings/str_cat.h>

#include "src/comm/links/control_messages.h"
#include "src/comm/links/credit_scheduler.h"
#include "weft/core/status.h"
#include "weft/core/utf8.h"

namespace weft {
namespace {

absl::Status Malformed(absl::string_view what, const WireLink::ControlMessage& message,
                       absl::string_view problem) {
  return absl::InternalError(
      absl::StrCat(what, " from rank ", message.peer, " has ", problem, kSameVersionRemedy));
}

// `expected`: the number of bytes.
absl::Status WrongLength(absl::string_view what, const WireLink::ControlMessage& message,
                         absl::string_view expected) {
  return Malformed(what, message, absl::StrCat(message.bytes.size(), " bytes, expected ", expected));
}

// A control message without a payload.
std::string_view KindOnly(const ControlKind& kind) {
  return {reinterpret_cast<const char*>(&kind), sizeof(kind)};
}

}  // namespace

absl::StatusOr<bool> CreditScheduler::PollControlMessages() {
  bool any = false;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(std::optional<WireLink::ControlMessage> message, link_.PollControlMessage());
    if (!message) return any;
    any = true;
    WEFT_RETURN_IF_ERROR(HandleControlMessage(*message));
  }
}

absl::Status CreditScheduler::HandleControlMessage(const WireLink::ControlMessage& message) {
  ControlKind kind{};
  if (message.bytes.empty()) return WrongLength("a control message", message, "some");
  std::memcpy(&kind, message.bytes.data(), sizeof(kind));
  if (kind == ControlKind::kFailure) {
    FailureHeader header;
    if (message.bytes.size() < sizeof(header))
      return WrongLength("a failure notice", message, absl::StrCat(sizeof(header), " and more"));
    std::memcpy(&header, message.bytes.data(), sizeof(header));
    constexpr auto kGreatestCode = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
    if (header.code < 1 || header.code > kGreatestCode)
      return Malformed("a failure notice", message, absl::StrCat("the status code ", header.code));
    if (!failure_) {
      failure_ = {header.origin, absl::Status(static_cast<absl::StatusCode>(header.code),
                                              message.bytes.substr(sizeof(header)))};
    }
    return absl::OkStatus();
  }
  if (kind == ControlKind::kQuestion || kind == ControlKind::kAnswer) {
    WEFT_ASSIGN_OR_RETURN(LateRankAnswer answer,
                          ParseLateRanks(message.peer, std::string_view(message.bytes).substr(sizeof(kind))));
    if (kind == ControlKind::kQuestion) {
      questions_.push_back(answer.question);
    } else {
      answers_.push_back(std::move(answer));
    }
    return absl::OkStatus();
  }
  if (kind == ControlKind::kSignal) {
    if (message.bytes.size() == sizeof(kind)) return WrongLength("a message signal", message, "more");
    signals_.push_back({message.peer, message.bytes.substr(sizeof(kind))});
    return absl::OkStatus();
  }
  if (kind == ControlKind::kPartial) return HandlePartial(message);
  if (kind != ControlKind::kCredit)
    return Malformed("a control message", message, absl::StrCat("the unknown kind ", static_cast<int>(kind)));
  return HandleCredit(message);
}

absl::Status CreditScheduler::HandleCredit(const WireLink::ControlMessage& message) {
  CreditMessage credit;
  if (message.bytes.size() != sizeof(credit)) {
    return WrongLength("a credit message", message, absl::StrCat(sizeof(credit)));
  }
  if (const auto unknown = UnknownField(message.bytes.data() + offsetof(CreditMessage, descriptor)))
    return Malformed("a credit message", message, "the " + *unknown);
  std::memcpy(&credit, message.bytes.data(), sizeof(credit));
  if (credit.slices < 0 || credit.part.dims < 0 || credit.part.dims > PartShape::kMaxDims) {
    return Malformed("a credit message", message,
                     absl::StrCat(credit.slices, " slices of a part of ", credit.part.dims, " dims"));
  }
  const uint64_t sequence = credit.sequence;
  Granted& granted = credits_[Key{credit.lane, sequence, message.peer, credit.number}];
  if (credit.slices > 1) granted.runs.push_back({granted.credit.slices, credit.slices});
  granted.credit.slices += credit.slices;
  granted.credit.part = credit.part;
  if (credit.lane == kMessageLane) {
    signals_.push_back({message.peer, {}, sequence});
    return absl::OkStatus();
  }
  ++peer_reports_[{credit.lane, sequence}].credit_messages;
  NoteDescriptor(credit.lane, message.peer, credit.descriptor);
  return absl::OkStatus();
}

absl::Status CreditScheduler::HandlePartial(const WireLink::ControlMessage& message) {
  PartialHeader header;
  if (message.bytes.size() < sizeof(header))
    return WrongLength("a partial sum", message, absl::StrCat(sizeof(header), " and more"));
  if (const auto unknown = UnknownField(message.bytes.data() + offsetof(PartialHeader, descriptor)))
    return Malformed("a partial sum", message, "the " + *unknown);
  std::memcpy(&header, message.bytes.data(), sizeof(header));
  partials_[Key{header.lane, header.descriptor.sequence, message.peer, header.edge}] =
      message.bytes.substr(sizeof(header));
  NoteDescriptor(header.lane, message.peer, header.descriptor);
  return absl::OkStatus();
}

void CreditScheduler::NoteDescriptor(int lane, int peer, const Descriptor& descriptor) {
  const bool is_first = credit_senders_.insert({lane, descriptor.sequence, peer}).second;
  if (is_first) peer_reports_[{lane, descriptor.sequence}].descriptors.push_back({peer, descriptor});
}

void CreditScheduler::CountPeer(int peer) {
  peers_.insert(peer);
  counters_.wire_peers = std::max(counters_.wire_peers, static_cast<int64_t>(peers_.size()));
}

absl::Status CreditScheduler::SendControl(int peer, std::string_view bytes) {
  ++counters_.control_messages;
  CountPeer(peer);
  return link_.SendControlMessage(peer, bytes);
}

absl::Status CreditScheduler::SendPartial(int peer, int lane, int edge, const Descriptor& descriptor,
                                          std::string_view payload) {
  WEFT_CHECK(payload.size() <= kMaxPartialBytes, "a partial sum is too long");
  PartialHeader header;
  header.lane = lane;
  header.edge = edge;
  header.descriptor = descriptor;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(payload);
  return SendControl(peer, bytes);
}

const std::string* CreditScheduler::PartialFrom(int peer, int lane, uint64_t sequence, int edge) const {
  const auto found = partials_.find(Key{lane, sequence, peer, edge});
  return found == partials_.end() ? nullptr : &found->second;
}

absl::Status CreditScheduler::SendCredit(const Channel& channel, const Descriptor& descriptor,
                                         const PartShape& part, int32_t slices) {
  CreditMessage message;
  message.lane = channel.lane;
  message.number = channel.number;
  message.slices = slices;
  message.sequence = channel.sequence;
  message.part = part;
  message.descriptor = descriptor;
  return SendControl(channel.peer, {reinterpret_cast<const char*>(&message), sizeof(message)});
}

absl::Status CreditScheduler::SendSignal(int peer, std::string_view bytes) {
  return SendControl(peer, absl::StrCat(ToAbsl(KindOnly(ControlKind::kSignal)), ToAbsl(bytes)));
}

void CreditScheduler::BroadcastFailure(const NodeLink::FailureNotice& notice, const std::vector<int>& ranks) {
  const absl::Status& cause = notice.cause;
  FailureHeader header;
  header.code = static_cast<int32_t>(cause.code());
  header.origin = notice.rank;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(StartOf(ToStd(cause.message()), WireLink::kMaxControlMessageBytes - sizeof(header)));
  for (int rank : ranks) TrySend(rank, bytes);
}

void CreditScheduler::Ask(const LateRankQuestion& question) {
  TrySend(question.peer, absl::StrCat(ToAbsl(KindOnly(ControlKind::kQuestion)), EncodeLateRanks(question)));
}

void CreditScheduler::Answer(int peer, const LateRankAnswer& answer) {
  TrySend(peer, absl::StrCat(ToAbsl(KindOnly(ControlKind::kAnswer)), EncodeLateRanks(answer)));
}

void CreditScheduler::TrySend(int peer, std::string_view bytes) {
  const absl::Status sent = SendControl(peer, bytes);
  static_cast<void>(sent);
}

}  // namespace weft
