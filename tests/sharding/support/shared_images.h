// Comparison of training with shared and with private images.
#pragma once

#include <mutex>

#include <gtest/gtest.h>

#include "tests/sharding/support/expect_costs.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {

// Trains on all ranks and returns the outcome of one. Expects the same weights on every rank, and the costs
// of the formulas.
inline ToyOutcome TrainOnThreads(const NodeMap& nodes, const ToyRun& run) {
  SCOPED_TRACE(run.Describe());
  ToyOutcome first;
  int64_t crossed = 0;
  std::mutex mutex;
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
    const std::lock_guard lock(mutex);
    if (first.weights.empty()) first = outcome;
    EXPECT_EQ(outcome.weights, first.weights);
    crossed += outcome.engine.cross_domain_bytes;
    if (!run.policy.dtypes_of) ExpectCosts(outcome);  // The formulas assume one dtype.
    EXPECT_EQ(outcome.sharding.unshared_images, 0);
    return absl::OkStatus();
  });
  // The formulas assume domains of equally many consecutive ranks.
  const NodeMap domains = ChooseShareDomains(nodes, ShareDomain::kAuto)->map;
  const auto ranks = static_cast<int>(domains.RanksOf(0).size());
  if (domains.node_of_rank == NodeMap::RanksPerNode(nodes.size(), ranks).node_of_rank) {
    EXPECT_EQ(crossed, first.expected.cross_domain_bytes);
  }
  return first;
}

inline void ExpectTheBitsOfPrivateImages(const NodeMap& nodes, ToyRun run) {
  run.policy.node_shared = NodeShared::kOff;
  const ToyOutcome apart = TrainOnThreads(nodes, run);
  run.policy.node_shared = NodeShared::kOn;
  const ToyOutcome together = TrainOnThreads(nodes, run);
  EXPECT_EQ(together.weights, apart.weights) << run.Describe();
  EXPECT_EQ(together.norms, apart.norms) << run.Describe();
}

}  // namespace weft::testing
