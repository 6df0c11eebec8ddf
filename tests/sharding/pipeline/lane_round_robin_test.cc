#include "sharding/pipeline/lane_round_robin.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

ProcessGroup AllRanks(const Bootstrap& bootstrap) {
  ProcessGroup group{"all", {}, bootstrap.rank()};
  for (int rank = 0; rank < bootstrap.size(); ++rank) group.ranks.push_back(rank);
  return group;
}

// Lanes of this many operations. The second half follows a Restart.
absl::StatusOr<std::vector<int>> LanesOf(Bootstrap& bootstrap, int operations) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine rank, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(LaneRoundRobin round_robin,
                        LaneRoundRobin::Add(*rank.engine, AllRanks(bootstrap), LanePurpose::kAllGather));
  std::vector<int> lanes;
  for (int i = 0; i < operations; ++i) {
    if (i == operations / 2) round_robin.Restart();
    lanes.push_back(round_robin.Next().index);
  }
  return lanes;
}

TEST(LaneRoundRobin, AlternatesBetweenNodesAndRestartsAfterAnError) {
  RunRanks(NodeMap::RanksPerNode(3, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::vector<int> lanes, LanesOf(bootstrap, 6));
    EXPECT_NE(lanes[0], lanes[1]);
    EXPECT_EQ(lanes, (std::vector{lanes[0], lanes[1], lanes[0], lanes[0], lanes[1], lanes[0]}));
    return absl::OkStatus();
  });
}

TEST(LaneRoundRobin, UsesOneLaneOnOneNode) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::vector<int> lanes, LanesOf(bootstrap, 4));
    EXPECT_THAT(lanes, ::testing::Each(lanes[0]));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
