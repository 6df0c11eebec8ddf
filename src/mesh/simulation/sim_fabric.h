// Messages between simulated nodes: latency, bandwidth of each node in each direction, and a seed that lets
// messages of different pairs overtake each other.
//
// Data is read at some moment between the meeting of a send with its receive and its end, and is there at the
// end.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "src/mesh/base/fabric_wire.h"
#include "src/mesh/simulation/simulator.h"

namespace weft::internal {

class SimFabric final : public WireFabric {
 public:
  SimFabric(Simulator& simulator, const NodeMap& nodes);

  int ranks() const override { return nodes_.size(); }
  void Meet(const WireChannel& channel, const std::shared_ptr<WireTransfer>& transfer) override;
  bool Withdraw(const WireChannel& channel, const WireTransfer& transfer) override;
  // What is on its way is lost.
  void Abandon(const WireChannel& channel, WireTransfer& transfer) override;
  void PutNote(int sender, int receiver, std::string_view bytes) override;
  std::optional<WireLink::Note> TakeNote(int rank) override;

  int64_t messages() const { return messages_; }

 private:
  void Carry(const std::shared_ptr<WireTransfer>& send, const std::shared_ptr<WireTransfer>& receive);

  Simulator& simulator_;
  const NodeMap nodes_;
  WireMeetings meetings_;
  std::vector<std::deque<WireLink::Note>> arrived_notes_;
  absl::flat_hash_map<std::pair<int, int>, int64_t> last_note_ns_;  // By pair: notes keep their order.
  std::vector<int64_t> egress_free_ns_, ingress_free_ns_;           // By node.
  int64_t messages_ = 0;
};

}  // namespace weft::internal
