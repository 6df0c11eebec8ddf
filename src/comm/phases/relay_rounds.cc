#include "src/comm/phases/relay_rounds.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kResultCounter = 0;  // Progress counter of a leader: 1 once it has the result.

}  // namespace

bool LeadsNode(const GroupPlacement& placement) { return placement.node_leader() == placement.me(); }

void AnnounceResultToNode(OperationContext& context) { context.AnnounceToLocalPeers(kResultCounter, 1); }

bool HasLeaderAnnounced(const OperationContext& context) {
  return context.CounterOf(context.placement.node_leader(), kResultCounter) != 0;
}

CreditScheduler::Channel ChannelToLeader(const OperationContext& context, int node, int number) {
  const GroupPlacement& placement = context.placement;
  return {context.record->lane, context.record->descriptor.sequence,
          placement.BootstrapRank(placement.NodeLeader(node)), number};
}

const ReceiveStream& OrderedReceives::Add(const CreditScheduler::Channel& channel, const Slicing& slicing,
                                          const SliceMemory& target, ReceiveStream::Source source) {
  return receives_.emplace_back(channel, WirePhase::kRelay, slicing, target, source);
}

absl::StatusOr<bool> OrderedReceives::Step(OperationContext& context) {
  if (!std::exchange(announced_empty_, true)) {
    for (ReceiveStream& receive : receives_) WEFT_RETURN_IF_ERROR(receive.AnnounceEmpty(context));
  }
  bool advanced = false;
  for (size_t i = finished(); i < receives_.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(const bool credited, receives_[i].Step(context, /*consumed=*/0));
    advanced |= credited;
    if (!receives_[i].is_credited()) break;
  }
  return advanced;
}

size_t OrderedReceives::finished() const {
  while (finished_ < receives_.size() && receives_[finished_].finished()) ++finished_;
  return finished_;
}

bool OrderedReceives::all_credited() const {
  return std::all_of(receives_.begin() + static_cast<std::ptrdiff_t>(finished()), receives_.end(),
                     [](const ReceiveStream& receive) { return receive.is_credited(); });
}

void OrderedReceives::AddAwaited(std::set<int>& ranks) const {
  for (const ReceiveStream& receive : receives_) {
    if (!receive.finished()) ranks.insert(receive.peer());
  }
}

void RelayRounds::AddSend(const Message& message) {
  sends_.push_back({receives_.size(), SendStream(message.channel, message.slicing, message.memory)});
}

void RelayRounds::AddReceive(const Message& message, ReceiveStream::Source source) {
  receives_.Add(message.channel, message.slicing, message.memory, source);
}

absl::StatusOr<bool> RelayRounds::Step(OperationContext& context, bool ready) {
  WEFT_ASSIGN_OR_RETURN(bool advanced, receives_.Step(context));
  const size_t arrived =
      context.wire.rules().rounds_await_earlier_ones ? receives_.finished() : receives_.size();
  for (size_t i = sent_; i < sends_.size(); ++i) {
    const bool may_leave = ready && sends_[i].awaited <= arrived;
    WEFT_ASSIGN_OR_RETURN(const bool sent, sends_[i].stream.Step(context, may_leave ? kAllSlices : 0));
    advanced |= sent;
  }
  return advanced;
}

bool RelayRounds::drained() const {
  while (sent_ < sends_.size() && sends_[sent_].stream.finished()) ++sent_;
  return sent_ == sends_.size() && received();
}

void RelayRounds::AddAwaited(std::set<int>& ranks) const {
  receives_.AddAwaited(ranks);
  if (!received()) return;
  for (const Send& send : sends_) {
    if (!send.stream.finished()) ranks.insert(send.stream.peer());
  }
}

}  // namespace weft
