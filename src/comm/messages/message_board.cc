#include "src/comm/messages/message_board.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "src/comm/base/named_ranks.h"
#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status Mismatch(const OperationRecord& receive, int own_rank, const Announcement& announcement) {
  const Signal& sent = announcement.signal;
  const Descriptor& expected = receive.descriptor;
  const auto describe = [](int64_t bytes, DType dtype, ElementKind elements, uint64_t identity) {
    return absl::StrCat(bytes, " bytes of ", ElementName(dtype, elements), ", identity ",
                        absl::Hex(identity));
  };
  return absl::FailedPreconditionError(
      absl::StrCat("channel ", sent.channel, ", tag ", sent.tag, ": rank ", announcement.source, " sends ",
                   describe(sent.bytes, sent.dtype, sent.elements, sent.identity), " to rank ", own_rank,
                   ", which receives ",
                   describe(receive.message->bytes, expected.dtype, expected.elements, expected.identity),
                   "; a send and the receive that matches it must have the same size, dtype and identity"));
}

Priority PriorityOf(const OperationRecord& record) {
  return record.message->awaited ? Priority::kCritical : record.priority;
}

}  // namespace

MessageBoard::MessageBoard(const Environment& environment, MessageEvents& events)
    : env_(environment),
      events_(events),
      self_(ProcessGroup{"messages", {environment.rank}, 0}, environment.nodes) {}

OperationContext MessageBoard::ContextOf(const Record& record) const {
  const bool awaited = record->message->awaited;
  return {.placement = self_,
          .node = env_.node,
          .wire = env_.wire,
          .tasks = env_.tasks,
          .scratch = env_.scratch,
          .counters = env_.counters,
          .options = env_.options,
          .record = record,
          .priority = PriorityOf(*record),
          .is_ready_awaited = awaited,
          .is_release_awaited = awaited};
}

void MessageBoard::Submit(std::shared_ptr<OperationRecord> record) {
  used_ = true;
  records_[record->descriptor.sequence] = record;
  submitted_.push_back(std::move(record));
}

absl::Status MessageBoard::Send(int peer, const Signal& signal) {
  if (peer == env_.rank) {
    own_signals_.push_back(signal);
    return absl::OkStatus();
  }
  if (IsRemote(peer)) return env_.mail.SendSignal(peer, WireBytes(signal));
  env_.node.SendMail(peer, WireBytes(signal));
  return absl::OkStatus();
}

absl::StatusOr<bool> MessageBoard::Poll() {
  env_.node.FlushMail();
  if (records_.empty()) return HandleSignals();
  bool advanced = !submitted_.empty();
  while (!submitted_.empty()) {
    const Record record = std::move(submitted_.front());
    submitted_.pop_front();
    WEFT_RETURN_IF_ERROR(Start(record));
  }
  WEFT_ASSIGN_OR_RETURN(const bool handled, HandleSignals());
  WEFT_RETURN_IF_ERROR(CheckAnySource());
  WEFT_RETURN_IF_ERROR(AskNext());
  WEFT_ASSIGN_OR_RETURN(const bool sent, StepSends());
  WEFT_ASSIGN_OR_RETURN(const bool received, StepReceives());
  return advanced || handled || sent || received;
}

absl::Status MessageBoard::Start(const Record& record) {
  if (!IsSend(*record)) return StartReceive(record);
  const int peer = record->message->peer;
  if (left_receivers_.contains(peer)) return HasLeft(peer, "received", *record);
  auto message = std::make_unique<OutgoingMessage>(record, IsRemote(peer));
  const Signal announcement = message->Announcement(env_.node);
  sends_[message->number()] = std::move(message);
  return Send(peer, announcement);
}

absl::Status MessageBoard::StartReceive(const Record& record) {
  const int peer = record->message->peer;
  if (const auto announcement = matcher_.Post(record)) return Match(record, *announcement);
  if (peer == env_.rank) return absl::OkStatus();
  if (left_senders_.contains(peer)) return HasLeft(peer, "sent", *record);
  // See Note [Messages]: a rank that uses no messages must learn that this one waits for it.
  Signal interest;
  interest.kind = SignalKind::kInterest;
  const bool any = peer == kAnySource;
  for (int rank = any ? 0 : peer; rank < (any ? env_.nodes.size() : peer + 1); ++rank) {
    if (IsRemote(rank) && interest_recipients_.insert(rank).second)
      WEFT_RETURN_IF_ERROR(Send(rank, interest));
  }
  return absl::OkStatus();
}

absl::Status MessageBoard::Match(const Record& record, const Announcement& announcement) {
  MessageRequest& message = *record->message;
  const Signal& sent = announcement.signal;
  const Descriptor& expected = record->descriptor;
  if (sent.bytes != message.bytes || sent.dtype != expected.dtype || sent.elements != expected.elements ||
      sent.identity != expected.identity) {
    return Mismatch(*record, env_.rank, announcement);
  }
  message.source = announcement.source;
  if (announcement.source != env_.rank) env_.counters.point_to_point_bytes += message.bytes;
  events_.OnMessageStarted(*record);
  receives_.push_back(std::make_unique<IncomingMessage>(record, announcement.source, announcement.signal,
                                                        IsRemote(announcement.source)));
  return absl::OkStatus();
}

absl::StatusOr<bool> MessageBoard::HandleSignals() {
  bool any = false;
  for (const ControlMail::RawSignal& received : env_.mail.TakeSignals()) {
    any = true;
    if (received.bytes.empty()) {
      const auto found = sends_.find(received.number);
      if (found == sends_.end() || found->second->message().peer != received.peer ||
          !found->second->is_remote()) {
        return absl::InternalError(absl::StrCat("rank ", received.peer, " has sent a credit for message ",
                                                received.number, ", which this rank does not send to it",
                                                kSameVersionRemedy));
      }
      if (!found->second->granted()) events_.OnMessageStarted(*found->second->record());
      found->second->OnCredit(ContextOf(found->second->record()));
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(const Signal signal, ParseSignal(received.peer, received.bytes));
    WEFT_RETURN_IF_ERROR(HandleSignal(received.peer, signal));
  }
  while (const std::optional<NodeLink::Mail> received = env_.node.ReceiveMail()) {
    any = true;
    WEFT_ASSIGN_OR_RETURN(const Signal signal, ParseSignal(received->peer, received->bytes));
    WEFT_RETURN_IF_ERROR(HandleSignal(received->peer, signal));
  }
  while (!own_signals_.empty()) {
    any = true;
    const Signal signal = own_signals_.front();
    own_signals_.pop_front();
    WEFT_RETURN_IF_ERROR(HandleSignal(env_.rank, signal));
  }
  return any;
}

absl::Status MessageBoard::HandleSignal(int source, const Signal& signal) {
  switch (signal.kind) {
    case SignalKind::kAnnounce: {
      used_ = true;
      const Announcement announcement{source, signal};
      const auto receive = matcher_.Announce(announcement);
      return receive ? Match(*receive, announcement) : absl::OkStatus();
    }
    case SignalKind::kPushed:
    case SignalKind::kStaged: {
      IncomingMessage* receive = FindIncoming(source, signal.number);
      if (receive == nullptr) return UnexpectedSignal(source, signal, "which this rank does not receive");
      OperationContext context = ContextOf(receive->record());
      return receive->OnSignal(context, signal);
    }
    case SignalKind::kGrant:
    case SignalKind::kPulled:
    case SignalKind::kConsumed: {
      const auto found = sends_.find(signal.number);
      if (found == sends_.end() || found->second->message().peer != source)
        return UnexpectedSignal(source, signal, "which this rank does not send to it");
      OutgoingMessage& send = *found->second;
      if (!send.granted()) events_.OnMessageStarted(*send.record());
      OperationContext context = ContextOf(send.record());
      return send.OnSignal(context, signal);
    }
    case SignalKind::kInterest:
      used_ = true;
      return absl::OkStatus();
    case SignalKind::kAsksWitness:
    case SignalKind::kNoMoreSends:
    case SignalKind::kNoMoreReceives:
      break;
  }
  if (signal.leaver < 0 || signal.leaver >= env_.nodes.size())
    return UnexpectedSignal(
        source, signal,
        absl::StrCat("about rank ", signal.leaver, ", but the last rank is ", env_.nodes.size() - 1));
  return signal.kind == SignalKind::kAsksWitness ? HandleQuestion(source, signal.leaver) : HandleLeft(signal);
}

IncomingMessage* MessageBoard::FindIncoming(int source, uint64_t number) {
  for (const auto& receive : receives_) {
    if (receive->source() == source && receive->number() == number) return receive.get();
  }
  return nullptr;
}

absl::StatusOr<bool> MessageBoard::StepSends() {
  bool advanced = false;
  for (auto it = sends_.begin(); it != sends_.end();) {
    OutgoingMessage& send = *it->second;
    if (send.granted() && !send.finished()) {
      OperationContext context = ContextOf(send.record());
      WEFT_ASSIGN_OR_RETURN(const bool stepped,
                            send.Step(context, *this, env_.rules.staged_pieces_await_receiver));
      advanced |= stepped;
    }
    if (!send.finished()) {
      ++it;
      continue;
    }
    if (send.is_remote()) env_.wire.ForgetSent(send.channel());
    const Record record = send.record();
    it = sends_.erase(it);
    Finish(record);
    advanced = true;
  }
  return advanced;
}

absl::StatusOr<bool> MessageBoard::StepReceives() {
  if (receives_.empty()) return false;
  bool advanced = false;
  std::vector<IncomingMessage*> order;
  for (const auto& receive : receives_) order.push_back(receive.get());
  std::stable_sort(order.begin(), order.end(), [](const IncomingMessage* a, const IncomingMessage* b) {
    return PriorityOf(*a->record()) < PriorityOf(*b->record());
  });
  for (IncomingMessage* receive : order) {
    WEFT_ASSIGN_OR_RETURN(const bool stepped, StepReceive(*receive));
    advanced |= stepped;
  }
  std::vector<Record> finished;
  std::erase_if(receives_, [&](const std::unique_ptr<IncomingMessage>& receive) {
    if (receive->finished()) finished.push_back(receive->record());
    return receive->finished();
  });
  for (const Record& record : finished) Finish(record);
  return advanced;
}

absl::StatusOr<bool> MessageBoard::StepReceive(IncomingMessage& receive) {
  OperationContext context = ContextOf(receive.record());
  const std::pair<int, int> channel{receive.source(), receive.channel().number};
  if (!receive.begun()) {
    if (receive.is_remote() && !busy_channels_.insert(channel).second) return false;
    const std::byte* own_source = nullptr;
    if (receive.source() == env_.rank) own_source = sends_.at(receive.number())->message().data;
    WEFT_RETURN_IF_ERROR(receive.Begin(context, *this, own_source));
  }
  WEFT_ASSIGN_OR_RETURN(const bool advanced, receive.Step(context, *this));
  if (receive.finished() && receive.is_remote()) {
    busy_channels_.erase(channel);
    env_.wire.ForgetReceived(receive.channel());
  }
  return advanced || receive.finished();
}

void MessageBoard::Finish(const Record& record) {
  records_.erase(record->descriptor.sequence);
  events_.OnMessageFinished(*record);
}

bool MessageBoard::uses_wire() const {
  if (records_.empty() || env_.nodes.node_count() == 1) return false;
  return std::any_of(records_.begin(), records_.end(), [this](const auto& entry) {
    const int peer = entry.second->message->peer;
    return peer == kAnySource || IsRemote(peer);
  });
}

std::vector<MessageBoard::Record> MessageBoard::unfinished() const {
  std::vector<Record> unfinished;
  for (const auto& [number, record] : records_) unfinished.push_back(record);
  return unfinished;
}

std::string MessageBoard::DescribeWait(const OperationRecord& record) const {
  const MessageRequest& message = *record.message;
  if (IsSend(record)) {
    const auto found = sends_.find(record.descriptor.sequence);
    const bool granted = found != sends_.end() && found->second->granted();
    return absl::StrCat(DescribeAwaited({message.peer}), granted ? "" : " to receive it");
  }
  if (record.State() == OperationState::kRunning) return DescribeSource(message.source);
  if (message.peer == kAnySource) return "waits for any rank to send it";
  return absl::StrCat(DescribeAwaited({message.peer}), " to send it");
}

}  // namespace weft
