// Bootstrap of simulated ranks, and the state that all ranks of a simulation share.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/mesh/base/gather_round.h"
#include "src/mesh/simulation/sim_fabric.h"
#include "src/mesh/simulation/sim_runtime.h"
#include "weft/mesh/bootstrap.h"

namespace weft::internal {

// Shared state of all ranks. The n-th gather on one rank matches the n-th gather on every other rank, and
// links match alike. Reservations match by their ReservationNumber.
class SimWorld {
 public:
  SimWorld(Simulator& simulator, const NodeMap& nodes);

  const NodeMap& nodes() const { return nodes_; }
  // Number of ranks that run: the first ones.
  int running_ranks() const { return running_ranks_; }
  absl::StatusOr<std::vector<std::string>> Gather(int rank, size_t call, std::string_view blob,
                                                  absl::Duration timeout);
  absl::StatusOr<NodeMemory> Reserve(int node, ReservationNumber number, size_t segment_bytes);
  std::shared_ptr<SimFabric> Fabric(size_t call);
  absl::StatusOr<FreeMemory> FreeNodeMemory() const;
  int64_t messages() const;
  std::vector<int64_t> control_messages() const;

 private:
  struct Round : GatherRound {
    using GatherRound::GatherRound;
    std::atomic<uint32_t> wakes{0};  // The word that waiting ranks sleep on.
  };

  Simulator& simulator_;
  const NodeMap nodes_;
  const int running_ranks_;
  std::map<size_t, Round> rounds_;
  NodeReservations reservations_;
  std::vector<std::shared_ptr<SimFabric>> fabrics_;
};

class SimBootstrap final : public Bootstrap {
 public:
  SimBootstrap(int rank, Simulator& simulator, SimWorld& world)
      : rank_(rank), world_(world), runtime_(simulator, rank) {}

  int rank() const override { return rank_; }
  const NodeMap& node_map() const override { return world_.nodes(); }
  Runtime& runtime() override { return runtime_; }

  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    return world_.Gather(rank_, calls_.NextGather(), blob, timeout);
  }
  absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) override {
    return world_.Reserve(node(), calls_.NextReservation(), segment_bytes);
  }
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override { return world_.FreeNodeMemory(); }
  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration /*timeout*/) override {
    return std::make_unique<FabricLink>(rank_, world_.Fabric(links_++));
  }
  std::string TransportName() const override { return "simulated links"; }
  int64_t link_count() const override { return static_cast<int64_t>(links_); }
  void SkipLinks(int64_t count) override { links_ = std::max(links_, static_cast<size_t>(count)); }

 private:
  int rank_;
  SimWorld& world_;
  SimRuntime runtime_;
  CallNumbers calls_;
  size_t links_ = 0;
};

}  // namespace weft::internal
