#include "src/mesh/simulation/sim_bootstrap.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/base/rank_outcomes.h"
#include "src/mesh/host/node_memory_limits.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace internal {

SimWorld::SimWorld(Simulator& simulator, const NodeMap& nodes)
    : simulator_(simulator),
      nodes_(nodes),
      running_ranks_(simulator.options().mirror_nodes ? static_cast<int>(nodes.RanksOf(0).size())
                                                      : nodes.size()) {}

absl::StatusOr<std::vector<std::string>> SimWorld::Gather(int rank, size_t call, std::string_view blob,
                                                          absl::Duration timeout) {
  const int64_t deadline = simulator_.NowNs() + absl::ToInt64Nanoseconds(std::min(timeout, absl::Hours(24)));
  Round& round = rounds_.try_emplace(call, running_ranks_).first->second;
  round.Arrive(rank, blob);
  if (round.complete()) {
    round.wakes.store(1);
    simulator_.WakeAll(&round.wakes);
  }
  while (!round.complete() && simulator_.NowNs() < deadline) {
    simulator_.SleepOn(&round.wakes, deadline - simulator_.NowNs());
  }
  absl::StatusOr<std::vector<std::string>> result = round.Result(timeout);
  if (round.Leave()) rounds_.erase(call);
  if (!result.ok()) return result;
  for (size_t other = result->size(); other < static_cast<size_t>(nodes_.size()); ++other) {
    result->push_back((*result)[other - static_cast<size_t>(running_ranks_)]);
  }
  return result;
}

absl::StatusOr<NodeMemory> SimWorld::Reserve(int node, ReservationNumber number, size_t segment_bytes) {
  return reservations_.Segments(node, nodes_.RanksOf(node), number, segment_bytes,
                                [this] { return FreeNodeMemory(); });
}

absl::StatusOr<FreeMemory> SimWorld::FreeNodeMemory() const {
  return FreeMemoryOfEmulatedNode(simulator_.options().mirror_nodes ? 1 : nodes_.node_count());
}

std::shared_ptr<SimFabric> SimWorld::Fabric(size_t call) {
  while (call >= fabrics_.size()) fabrics_.push_back(std::make_shared<SimFabric>(simulator_, nodes_));
  return fabrics_[call];
}

int64_t SimWorld::messages() const {
  int64_t messages = 0;
  for (const auto& fabric : fabrics_) messages += fabric->messages();
  return messages;
}

std::vector<int64_t> SimWorld::control_messages() const {
  std::vector<int64_t> messages(static_cast<size_t>(nodes_.size()));
  for (const auto& fabric : fabrics_) {
    for (size_t rank = 0; rank < messages.size(); ++rank) messages[rank] += fabric->control_messages()[rank];
  }
  return messages;
}

}  // namespace internal

absl::Status SimReport::status() const { return internal::ErrorOfRanks(outcomes); }

SimReport RunSimulatedRanks(const NodeMap& nodes, const SimOptions& options,
                            absl::FunctionRef<absl::Status(Bootstrap&)> body) {
  internal::Simulator simulator(options, nodes);
  internal::SimWorld world(simulator, nodes);
  SimReport report;
  report.outcomes.resize(static_cast<size_t>(world.running_ranks()));
  std::vector<std::unique_ptr<internal::SimBootstrap>> bootstraps;
  std::vector<internal::Simulator::FiberId> fibers;
  for (int rank = 0; rank < world.running_ranks(); ++rank) {
    bootstraps.push_back(std::make_unique<internal::SimBootstrap>(rank, simulator, world));
    fibers.push_back(simulator.Start(rank, [&report, &body, &bootstrap = *bootstraps.back()] {
      report.outcomes[static_cast<size_t>(bootstrap.rank())] = body(bootstrap);
    }));
  }
  simulator.Run();
  for (int rank = 0; rank < world.running_ranks(); ++rank) {
    if (simulator.IsFinished(fibers[static_cast<size_t>(rank)])) continue;
    report.outcomes[static_cast<size_t>(rank)] =
        simulator.IsDead(rank)
            ? absl::UnavailableError(absl::StrCat("died at ", options.death->at_ns, " ns"))
            : absl::InternalError("deadlock: the rank waits, and no event is left that could wake it");
  }
  report.virtual_ns = simulator.NowNs();
  report.events = simulator.events();
  report.messages = world.messages();
  report.control_messages = world.control_messages();
  report.fingerprint = simulator.fingerprint();
  return report;
}

}  // namespace weft
