// Messages between simulated nodes: latency, bandwidth of each node in each direction, and a seed that lets
// messages of different pairs overtake each other.
//
// Data is read at some moment between the meeting of a send with its receive and its end, and is there at the
// end: a send is done only when it has been received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "src/mesh/simulator.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

// One end of a message, which waits for the other or has met it.
struct SimTransfer {
  int rank = 0;
  bool is_send = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<SimTransfer> other;  // Once they have met, and until the data has been copied.
  bool done = false;
  absl::Status outcome;
};

// What the links of one opening share.
class SimFabric {
 public:
  SimFabric(Simulator& simulator, const NodeMap& nodes);

  using Channel = std::tuple<int, int, int>;  // Sender, receiver, tag.
  void Meet(const Channel& channel, const std::shared_ptr<SimTransfer>& transfer);
  // Takes `transfer` back if it still waits. False: it has met its other end.
  bool Withdraw(const Channel& channel, const SimTransfer& transfer);
  void PutNote(int sender, int receiver, std::string_view bytes);
  std::optional<WireLink::Note> TakeNote(int rank);

  int ranks() const { return nodes_.size(); }
  int64_t messages() const { return messages_; }

 private:
  void Carry(const std::shared_ptr<SimTransfer>& send, const std::shared_ptr<SimTransfer>& receive);

  Simulator& simulator_;
  const NodeMap nodes_;
  std::map<Channel, std::deque<std::shared_ptr<SimTransfer>>> waiting_;
  std::vector<std::deque<WireLink::Note>> arrived_notes_;
  absl::flat_hash_map<std::pair<int, int>, int64_t> last_note_ns_;  // By pair: notes keep their order.
  std::vector<int64_t> egress_free_ns_, ingress_free_ns_;           // By node.
  int64_t messages_ = 0;
};

class SimWire final : public WireLink {
 public:
  SimWire(int rank, std::shared_ptr<SimFabric> fabric) : rank_(rank), fabric_(std::move(fabric)) {}
  ~SimWire() override;

  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes) override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId receive) override;
  absl::Status SendNote(int peer, std::string_view bytes) override;
  absl::StatusOr<std::optional<Note>> PollNote() override;
  int max_tag() const override { return (1 << 30) - 1; }

 private:
  struct Request {
    SimFabric::Channel channel;
    std::shared_ptr<SimTransfer> transfer;
  };
  RequestId Post(const SimFabric::Channel& channel, bool is_send, std::byte* data, size_t bytes);

  int rank_;
  std::shared_ptr<SimFabric> fabric_;
  RequestId next_request_ = 1;
  absl::flat_hash_map<RequestId, Request> requests_;
};

}  // namespace weft::internal
