// Training of the toy network over MPI processes, on every mesh of the ranks.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

// The ranks of the world, of which each pair of a node is bound to a NUMA node of its own.
class OnNumaNodes final : public ForwardingBootstrap {
 public:
  OnNumaNodes() : ForwardingBootstrap(WorldBootstrap()), nodes_(WorldBootstrap().node_map()) {
    std::map<int, int> seen;  // Ranks by node.
    nodes_.numa_of_rank.clear();
    for (const int node : nodes_.node_of_rank) nodes_.numa_of_rank.push_back(seen[node]++ / 2);
  }
  const NodeMap& node_map() const override { return nodes_; }

 private:
  NodeMap nodes_;
};

TEST(FullyShardOverMpi, GivesTheSameBitsWithAnImageForEachNumaNode) {
  OnNumaNodes numa_nodes;
  ToyRun run{.shard = WorldBootstrap().size()};
  ASSERT_OK_AND_ASSIGN(const ToyOutcome by_node, TrainToy(WorldBootstrap(), run));
  ASSERT_OK_AND_ASSIGN(const ToyOutcome by_numa_node, TrainToy(numa_nodes, run));
  EXPECT_EQ(by_numa_node.weights, by_node.weights);
  const std::vector<int>& numa = numa_nodes.node_map().numa_of_rank;
  const bool has_several = *std::max_element(numa.begin(), numa.end()) > 0;
  // Rank 0 copies the part of the third rank of its node. With three ranks, rank 1 copies none.
  if (numa_nodes.rank() == 0) {
    EXPECT_EQ(by_numa_node.engine.cross_domain_bytes > 0, has_several);
  }
}

TEST(FullyShardOverMpi, TrainsLikeOneRankOnEveryMesh) {
  const int ranks = WorldBootstrap().size();
  for (int shard = 1; shard <= ranks; ++shard) {
    if (ranks % shard != 0) continue;
    for (const FlatKind layout : kFlatKinds) {
      ToyRun run{.replicate = ranks / shard, .shard = shard};
      run.policy.layout = layout;
      SCOPED_TRACE(run.Describe());
      ASSERT_OK_AND_ASSIGN(const ToyOutcome alone, TrainToyOnOneRank(run));
      ASSERT_OK_AND_ASSIGN(const ToyOutcome outcome, TrainToy(WorldBootstrap(), run));
      ASSERT_EQ(outcome.weights.size(), alone.weights.size());
      for (size_t i = 0; i < alone.weights.size(); ++i)
        EXPECT_NEAR(outcome.weights[i], alone.weights[i], 1e-5F);
      if (outcome.expected.packed_bytes == 0) {
        EXPECT_EQ(outcome.engine.copied_bytes, 0);
      } else {
        EXPECT_GT(outcome.total_copied_bytes, 0);
      }
      EXPECT_EQ(outcome.sharding.copied_bytes, outcome.expected.copied_bytes);
      EXPECT_EQ(outcome.engine.all_gather_bytes, outcome.expected.all_gather_bytes);
    }
  }
}

}  // namespace
}  // namespace weft::testing
