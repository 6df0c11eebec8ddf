#include "src/mesh/simulation/sim_fabric.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::internal {
namespace {

// Unless one end has been abandoned.
void Copy(WireTransfer& send, WireTransfer& receive) {
  if (send.other == nullptr) return;
  send.other.reset();
  receive.other.reset();
  MoveBytes(send, receive);
}

}  // namespace

SimFabric::SimFabric(Simulator& simulator, const NodeMap& nodes)
    : simulator_(simulator),
      nodes_(nodes),
      arrived_notes_(static_cast<size_t>(nodes.size())),
      egress_free_ns_(static_cast<size_t>(nodes.node_count())),
      ingress_free_ns_(static_cast<size_t>(nodes.node_count())) {}

void SimFabric::Meet(const WireChannel& channel, const std::shared_ptr<WireTransfer>& transfer) {
  const std::shared_ptr<WireTransfer> other = meetings_.Meet(channel, transfer);
  if (other == nullptr) return;
  transfer->other = other;
  other->other = transfer;
  if (transfer->is_send) {
    Carry(transfer, other);
  } else {
    Carry(other, transfer);
  }
}

void SimFabric::Carry(const std::shared_ptr<WireTransfer>& send,
                      const std::shared_ptr<WireTransfer>& receive) {
  ++messages_;
  const SimOptions& options = simulator_.options();
  const auto wire_ns = static_cast<int64_t>(static_cast<double>(send->bytes) / options.wire_speed);
  int64_t& egress = egress_free_ns_[static_cast<size_t>(nodes_.node_of_rank[send->rank])];
  int64_t& ingress = ingress_free_ns_[static_cast<size_t>(nodes_.node_of_rank[receive->rank])];
  const int64_t begin = std::max({simulator_.NowNs(), egress, ingress});
  egress = ingress = begin + wire_ns;
  const int64_t end = begin + wire_ns + simulator_.Delay(send->rank, options.wire_latency_ns);
  const auto read = begin + static_cast<int64_t>(simulator_.Draw() * static_cast<double>(end - begin));
  const auto lost = [this](const WireTransfer& a, const WireTransfer& b) {
    return simulator_.IsDead(a.rank) || simulator_.IsDead(b.rank);
  };
  simulator_.At(read, [=] {
    if (!lost(*send, *receive)) Copy(*send, *receive);
  });
  const int64_t send_end = read + static_cast<int64_t>(simulator_.Draw() * static_cast<double>(end - read));
  simulator_.At(send_end, [=] { send->done = !lost(*send, *receive); });
  simulator_.At(end, [=] { receive->done = !lost(*send, *receive); });
}

bool SimFabric::Withdraw(const WireChannel& channel, const WireTransfer& transfer) {
  return meetings_.Withdraw(channel, transfer);
}

void SimFabric::Abandon(const WireChannel& channel, WireTransfer& transfer) {
  if (Withdraw(channel, transfer)) return;
  if (const std::shared_ptr<WireTransfer> other = std::exchange(transfer.other, nullptr)) {
    other->other.reset();
  }
}

void SimFabric::PutNote(int sender, int receiver, std::string_view bytes) {
  int64_t& last = last_note_ns_[{sender, receiver}];
  last = std::max(last, simulator_.NowNs() + simulator_.Delay(sender, simulator_.options().wire_latency_ns));
  simulator_.At(last, [this, receiver, note = WireLink::Note{sender, std::string(bytes)}] {
    arrived_notes_[static_cast<size_t>(receiver)].push_back(note);
  });
}

std::optional<WireLink::Note> SimFabric::TakeNote(int rank) {
  auto& notes = arrived_notes_[static_cast<size_t>(rank)];
  if (notes.empty()) return std::nullopt;
  WireLink::Note note = std::move(notes.front());
  notes.pop_front();
  return note;
}

}  // namespace weft::internal
