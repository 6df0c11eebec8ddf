#include "src/mesh/simulation/sim_fabric.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace weft::internal {
namespace {

// Copies the bytes of a matched pair. Does nothing if one end has been abandoned.
void Copy(FabricTransfer& send, FabricTransfer& receive) {
  if (send.match == nullptr) return;
  send.match.reset();
  receive.match.reset();
  MoveBytes(send, receive);
  send.copied = receive.copied = true;
}

}  // namespace

SimFabric::SimFabric(Simulator& simulator, const NodeMap& nodes)
    : simulator_(simulator),
      nodes_(nodes),
      ranks_per_node_(static_cast<int>(nodes.RanksOf(0).size())),
      arrived_control_messages_(static_cast<size_t>(nodes.size())),
      egress_free_ns_(static_cast<size_t>(nodes.node_count())),
      ingress_free_ns_(static_cast<size_t>(nodes.node_count())),
      control_messages_(static_cast<size_t>(nodes.size())) {}

FabricChannel SimFabric::Mirrored(const FabricChannel& channel) const {
  if (!simulator_.options().mirror_nodes) return channel;
  const auto [sender, receiver, tag] = channel;
  return {sender + receiver / ranks_per_node_ * ranks_per_node_, receiver % ranks_per_node_, tag};
}

void SimFabric::Post(const FabricChannel& channel, const std::shared_ptr<FabricTransfer>& transfer) {
  if (const std::optional<double>& speed = simulator_.options().wire_core_speed) {
    simulator_.AddDebt(transfer->rank, static_cast<int64_t>(static_cast<double>(transfer->bytes) / *speed));
  }
  const std::shared_ptr<FabricTransfer> match = match_queue_.Match(Mirrored(channel), transfer);
  if (match == nullptr) return;
  transfer->match = match;
  match->match = transfer;
  if (transfer->is_send) {
    ScheduleTransfer(transfer, match);
  } else {
    ScheduleTransfer(match, transfer);
  }
}

void SimFabric::ScheduleTransfer(const std::shared_ptr<FabricTransfer>& send,
                                 const std::shared_ptr<FabricTransfer>& receive) {
  ++messages_;
  const SimOptions& options = simulator_.options();
  const auto wire_ns = static_cast<int64_t>(static_cast<double>(send->bytes) / options.wire_speed);
  int64_t& egress = egress_free_ns_[static_cast<size_t>(nodes_.node_of_rank[send->rank])];
  int64_t& ingress = ingress_free_ns_[static_cast<size_t>(nodes_.node_of_rank[receive->rank])];
  const int64_t begin = std::max(simulator_.NowNs(), egress);
  egress = begin + wire_ns;
  ingress = std::max(begin, ingress) + wire_ns;
  const int64_t end = ingress + simulator_.Delay(send->rank, options.wire_latency_ns);
  const auto read = begin + static_cast<int64_t>(simulator_.Draw() * static_cast<double>(end - begin));
  const auto lost = [this](const FabricTransfer& a, const FabricTransfer& b) {
    return simulator_.IsDead(a.rank) || simulator_.IsDead(b.rank);
  };
  simulator_.At(read, [=] {
    if (!lost(*send, *receive)) Copy(*send, *receive);
  });
  const int64_t send_end = read + static_cast<int64_t>(simulator_.Draw() * static_cast<double>(end - read));
  simulator_.At(send_end, [=] { send->done = send->copied && !lost(*send, *receive); });
  simulator_.At(end, [=] { receive->done = receive->copied && !lost(*send, *receive); });
}

bool SimFabric::Withdraw(const FabricChannel& channel, const FabricTransfer& transfer) {
  return match_queue_.Withdraw(Mirrored(channel), transfer);
}

void SimFabric::Abandon(const FabricChannel& channel, FabricTransfer& transfer) {
  if (Withdraw(channel, transfer)) return;
  if (const std::shared_ptr<FabricTransfer> match = std::exchange(transfer.match, nullptr)) {
    match->match.reset();
  }
}

void SimFabric::PushControlMessage(int from, int to, std::string_view bytes) {
  ++control_messages_[static_cast<size_t>(from)];
  const auto [sender, receiver, tag] = Mirrored({from, to, 0});
  int64_t& last = last_control_message_ns_[{sender, receiver}];
  last = std::max(last, simulator_.NowNs() + simulator_.Delay(from, simulator_.options().wire_latency_ns));
  simulator_.At(last, [this, receiver = receiver,
                       message = WireLink::ControlMessage{sender, std::string(bytes)}]() mutable {
    arrived_control_messages_[static_cast<size_t>(receiver)].push_back(std::move(message));
  });
}

std::optional<WireLink::ControlMessage> SimFabric::PopControlMessage(int rank) {
  auto& messages = arrived_control_messages_[static_cast<size_t>(rank)];
  if (messages.empty()) return std::nullopt;
  WireLink::ControlMessage message = std::move(messages.front());
  messages.pop_front();
  return message;
}

}  // namespace weft::internal
