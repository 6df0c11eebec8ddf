// Control messages of the scheduler: credits and partial sums.
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include <absl/strings/str_cat.h>

#include "src/comm/links/control_messages.h"
#include "src/comm/links/credit_scheduler.h"
#include "weft/core/status.h"

namespace weft {

// A partial sum fits a control message.
static_assert(sizeof(PartialHeader) + CreditScheduler::kMaxPartialBytes <= WireLink::kMaxControlMessageBytes);

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
  if (message.bytes.empty()) return WrongMessageLength("a control message", message, "some");
  std::memcpy(&kind, message.bytes.data(), sizeof(kind));
  switch (kind) {
    case ControlKind::kCredit:
      return HandleCredit(message);
    case ControlKind::kPartial:
      return HandlePartial(message);
    case ControlKind::kFailure:
    case ControlKind::kQuestion:
    case ControlKind::kAnswer:
    case ControlKind::kSignal:
      return mail_.Handle(message);
  }
  return MalformedMessage("a control message", message,
                          absl::StrCat("the unknown kind ", static_cast<int>(kind)));
}

absl::Status CreditScheduler::HandleCredit(const WireLink::ControlMessage& message) {
  CreditMessage credit;
  if (message.bytes.size() != sizeof(credit)) {
    return WrongMessageLength("a credit message", message, absl::StrCat(sizeof(credit)));
  }
  if (const auto unknown = UnknownField(message.bytes.data() + offsetof(CreditMessage, descriptor)))
    return MalformedMessage("a credit message", message, "the " + *unknown);
  std::memcpy(&credit, message.bytes.data(), sizeof(credit));
  if (credit.slices < 0 || credit.part.dims < 0 || credit.part.dims > PartShape::kMaxDims) {
    return MalformedMessage("a credit message", message,
                            absl::StrCat(credit.slices, " slices of a part of ", credit.part.dims, " dims"));
  }
  const uint64_t sequence = credit.sequence;
  Granted& granted = credits_[Key{credit.lane, sequence, message.peer, credit.number}];
  if (credit.slices > 1) granted.runs.push_back({granted.credit.slices, credit.slices});
  granted.credit.slices += credit.slices;
  granted.credit.part = credit.part;
  if (credit.lane == kMessageLane) {
    mail_.AddCreditSignal(message.peer, sequence);
    return absl::OkStatus();
  }
  ++peer_reports_[{credit.lane, sequence}].credit_messages;
  NoteDescriptor(credit.lane, message.peer, credit.descriptor);
  return absl::OkStatus();
}

absl::Status CreditScheduler::HandlePartial(const WireLink::ControlMessage& message) {
  PartialHeader header;
  if (message.bytes.size() < sizeof(header))
    return WrongMessageLength("a partial sum", message, absl::StrCat(sizeof(header), " and more"));
  if (const auto unknown = UnknownField(message.bytes.data() + offsetof(PartialHeader, descriptor)))
    return MalformedMessage("a partial sum", message, "the " + *unknown);
  std::memcpy(&header, message.bytes.data(), sizeof(header));
  partials_[Key{header.lane, header.descriptor.sequence, message.peer, header.edge}] =
      message.bytes.substr(sizeof(header));
  NoteDescriptor(header.lane, message.peer, header.descriptor);
  return absl::OkStatus();
}

void CreditScheduler::NoteDescriptor(int lane, int peer, const Descriptor& descriptor) {
  const bool is_first = started_peers_.insert({lane, descriptor.sequence, peer}).second;
  if (is_first) peer_reports_[{lane, descriptor.sequence}].descriptors.push_back({peer, descriptor});
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
  return mail_.Send(peer, bytes);
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
  return mail_.Send(channel.peer, {reinterpret_cast<const char*>(&message), sizeof(message)});
}

}  // namespace weft
