// In-process fabric between simulated ranks, with a model of latency and of each node's bandwidth per
// direction.
//
// Random delays let messages of different pairs of ranks overtake each other. The bytes of a message are
// copied at a random moment of its transfer. The receive completes at the end of the transfer.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "src/mesh/base/fabric_link.h"
#include "src/mesh/simulation/simulator.h"

namespace weft::internal {

class SimFabric final : public InProcessFabric {
 public:
  SimFabric(Simulator& simulator, const NodeMap& nodes);

  int ranks() const override { return nodes_.size(); }
  void Post(const FabricChannel& channel, const std::shared_ptr<FabricTransfer>& transfer) override;
  bool Withdraw(const FabricChannel& channel, const FabricTransfer& transfer) override;
  // A message whose bytes have not been copied is lost: neither end completes.
  void Abandon(const FabricChannel& channel, FabricTransfer& transfer) override;
  void PushControlMessage(int sender, int receiver, std::string_view bytes) override;
  std::optional<WireLink::ControlMessage> PopControlMessage(int rank) override;

  int64_t messages() const { return messages_; }
  // By sender.
  const std::vector<int64_t>& control_messages() const { return control_messages_; }

 private:
  // The channel of the message that one on `channel` stands for: see Note [Mirrored nodes] in simulation.h.
  FabricChannel Mirrored(const FabricChannel& channel) const;
  // Schedules the copy and the completions of a matched pair.
  void ScheduleTransfer(const std::shared_ptr<FabricTransfer>& send,
                        const std::shared_ptr<FabricTransfer>& receive);

  Simulator& simulator_;
  const NodeMap nodes_;
  const int ranks_per_node_;  // Of mirrored nodes.
  MatchQueue match_queue_;
  std::vector<std::deque<WireLink::ControlMessage>> arrived_control_messages_;
  absl::flat_hash_map<std::pair<int, int>, int64_t> last_control_message_ns_;  // By (sender, receiver).
  std::vector<int64_t> egress_free_ns_, ingress_free_ns_;  // By node: when its link is free.
  int64_t messages_ = 0;
  std::vector<int64_t> control_messages_;
};

}  // namespace weft::internal
