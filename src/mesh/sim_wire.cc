#include "src/mesh/sim_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/mesh/wire_checks.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Moves the bytes, once; afterwards neither end's buffer is touched.
void Copy(SimTransfer& send, SimTransfer& receive) {
  if (send.other == nullptr) return;
  send.other.reset();
  receive.other.reset();
  receive.outcome = CheckLength(receive.bytes, send.bytes);
  if (receive.outcome.ok() && send.bytes != 0) std::memcpy(receive.data, send.data, send.bytes);
}

}  // namespace

SimFabric::SimFabric(Simulator& simulator, const NodeMap& nodes)
    : simulator_(simulator),
      nodes_(nodes),
      arrived_notes_(static_cast<size_t>(nodes.size())),
      egress_free_ns_(static_cast<size_t>(nodes.node_count())),
      ingress_free_ns_(static_cast<size_t>(nodes.node_count())) {}

void SimFabric::Meet(const Channel& channel, const std::shared_ptr<SimTransfer>& transfer) {
  auto& queue = waiting_[channel];
  if (queue.empty() || queue.front()->is_send == transfer->is_send) {
    queue.push_back(transfer);
    return;
  }
  const std::shared_ptr<SimTransfer> other = queue.front();
  queue.pop_front();
  if (queue.empty()) waiting_.erase(channel);
  transfer->other = other;
  other->other = transfer;
  if (transfer->is_send) {
    Carry(transfer, other);
  } else {
    Carry(other, transfer);
  }
}

void SimFabric::Carry(const std::shared_ptr<SimTransfer>& send, const std::shared_ptr<SimTransfer>& receive) {
  ++messages_;
  const SimOptions& options = simulator_.options();
  const auto wire_ns = static_cast<int64_t>(static_cast<double>(send->bytes) / options.wire_speed);
  int64_t& egress = egress_free_ns_[static_cast<size_t>(nodes_.node_of_rank[send->rank])];
  int64_t& ingress = ingress_free_ns_[static_cast<size_t>(nodes_.node_of_rank[receive->rank])];
  const int64_t begin = std::max({simulator_.NowNs(), egress, ingress});
  egress = ingress = begin + wire_ns;
  const int64_t end = begin + wire_ns + simulator_.Delay(send->rank, options.wire_latency_ns);
  const auto read = begin + static_cast<int64_t>(simulator_.Draw() * static_cast<double>(end - begin));
  const auto lost = [this](const SimTransfer& a, const SimTransfer& b) {
    return simulator_.IsDead(a.rank) || simulator_.IsDead(b.rank);
  };
  simulator_.At(read, [=] {
    if (!lost(*send, *receive)) Copy(*send, *receive);
  });
  const int64_t send_end = read + static_cast<int64_t>(simulator_.Draw() * static_cast<double>(end - read));
  simulator_.At(send_end, [=] { send->done = !lost(*send, *receive); });
  simulator_.At(end, [=] { receive->done = !lost(*send, *receive); });
}

bool SimFabric::Withdraw(const Channel& channel, const SimTransfer& transfer) {
  const auto found = waiting_.find(channel);
  if (found == waiting_.end()) return false;
  const size_t withdrawn =
      std::erase_if(found->second, [&](const auto& waiting) { return waiting.get() == &transfer; });
  if (found->second.empty()) waiting_.erase(found);
  return withdrawn > 0;
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

SimWire::~SimWire() {
  for (auto& [id, request] : requests_) {
    SimTransfer& transfer = *request.transfer;
    if (fabric_->Withdraw(request.channel, transfer)) continue;
    // What was on its way is lost.
    if (const std::shared_ptr<SimTransfer> other = std::exchange(transfer.other, nullptr))
      other->other.reset();
  }
}

WireLink::RequestId SimWire::Post(const SimFabric::Channel& channel, bool is_send, std::byte* data,
                                  size_t bytes) {
  auto transfer = std::make_shared<SimTransfer>();
  transfer->rank = rank_;
  transfer->is_send = is_send;
  transfer->data = data;
  transfer->bytes = bytes;
  requests_.emplace(next_request_, Request{channel, transfer});
  fabric_->Meet(channel, transfer);
  return next_request_++;
}

absl::StatusOr<WireLink::RequestId> SimWire::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, fabric_->ranks(), tag, max_tag()));
  // Only read: one type serves both ends.
  return Post({rank_, peer, tag}, true, const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes);
}

absl::StatusOr<WireLink::RequestId> SimWire::Receive(int peer, int tag, void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, fabric_->ranks(), tag, max_tag()));
  return Post({peer, rank_, tag}, false, static_cast<std::byte*>(data), bytes);
}

absl::StatusOr<bool> SimWire::Test(RequestId request) {
  const auto found = requests_.find(request);
  WEFT_CHECK(found != requests_.end(), "test of a request that is not under way");
  const std::shared_ptr<SimTransfer> transfer = found->second.transfer;
  if (!transfer->done) return false;
  requests_.erase(found);
  WEFT_RETURN_IF_ERROR(transfer->outcome);
  return true;
}

bool SimWire::Cancel(RequestId receive) {
  const auto found = requests_.find(receive);
  WEFT_CHECK(found != requests_.end(), "cancellation of a request that is not under way");
  if (!fabric_->Withdraw(found->second.channel, *found->second.transfer)) return false;
  requests_.erase(found);
  return true;
}

absl::Status SimWire::SendNote(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckNote(peer, fabric_->ranks(), bytes.size()));
  fabric_->PutNote(rank_, peer, bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<WireLink::Note>> SimWire::PollNote() { return fabric_->TakeNote(rank_); }

}  // namespace weft::internal
