// Training of the toy network over MPI processes, on every mesh of the ranks.
#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

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
