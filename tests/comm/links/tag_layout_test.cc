// Message tags of lanes, for few and for many ranks.
#include "src/comm/links/tag_layout.h"

#include <gtest/gtest.h>

#include "src/comm/base/group_placement.h"

namespace weft::testing {
namespace {

constexpr int kPromisedByMpi = 32'767;  // MPI_TAG_UB is at least that.

TEST(TagLayout, FitsTheTagsThatMpiPromisesWith65536Ranks) {
  for (const int per_node : {1, 8, 64, 128}) {
    const TagLayout tags = TagLayout::Of(kPromisedByMpi, NodeMap::RanksPerNode(65'536, per_node));
    EXPECT_GE(tags.lanes, 200) << per_node;
    EXPECT_LE(tags.OfLane(tags.lanes - 1, tags.per_lane - 1), kPromisedByMpi) << per_node;
    EXPECT_GT(tags.OfLane(tags.lanes, tags.per_lane - 1), kPromisedByMpi)
        << per_node << ": tags are left over";
  }
}

TEST(TagLayout, GivesLanesAndMessagesDifferentTags) {
  const TagLayout tags = TagLayout::Of(kPromisedByMpi, NodeMap::RanksPerNode(6, 2));
  EXPECT_EQ(tags.OfLane(0, 0), TagLayout::kMessages);
  EXPECT_EQ(tags.OfLane(1, 0), tags.OfLane(0, tags.per_lane - 1) + 1);
}

TEST(TagLayout, HasNoLanesIfTheTransportHasTooFewTags) {
  EXPECT_EQ(TagLayout::Of(TagLayout::kMessages, NodeMap::OneNode(2)).lanes, 0);
  EXPECT_EQ(TagLayout::Of(10, NodeMap::OneNode(2)).lanes, 0);
}

TEST(TagLayout, GivesNoChannelATagOfTheNextLane) {
  const TagLayout tags = TagLayout::Of(kPromisedByMpi, NodeMap::RanksPerNode(6, 2));
  EXPECT_DEATH(tags.OfLane(0, tags.per_lane), "a number beyond those of its lane");
  EXPECT_DEATH(tags.OfLane(1, -1), "a number beyond those of its lane");
}

// Each subtree of a node takes a channel number of its own. Round-robin placement has the most.
TEST(TagLayout, HasANumberForEachPartialSumOfANode) {
  for (const int ranks : {1, 2, 3, 7, 12, 64}) {
    for (const int node_count : {1, 2, 3, 5}) {
      NodeMap nodes;
      for (int rank = 0; rank < ranks; ++rank)
        nodes.node_of_rank.push_back(rank % std::min(node_count, ranks));
      ProcessGroup world{"world", {}, 0};
      for (int rank = 0; rank < ranks; ++rank) world.ranks.push_back(rank);
      const GroupPlacement placement(world, nodes);
      const TagLayout tags = TagLayout::Of(kPromisedByMpi, nodes);
      for (size_t i = 0; i < placement.subtrees().size(); ++i)
        EXPECT_LT(1 + placement.SubtreeInNode(static_cast<int>(i)), tags.per_lane);
    }
  }
}

}  // namespace
}  // namespace weft::testing
