#include "src/comm/base/group_placement.h"

#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;

ProcessGroup GroupOf(std::vector<int> ranks, int group_rank) {
  return {"test", std::move(ranks), group_rank};
}

TEST(GroupPlacement, NumbersNodesByTheirFirstMember) {
  const NodeMap nodes = NodeMap::RanksPerNode(8, 2);
  const GroupPlacement placement(GroupOf({6, 7, 2, 0, 1}, 2), nodes);
  EXPECT_EQ(placement.node_count(), 3);
  EXPECT_EQ(placement.NodeOf(0), 0);
  EXPECT_EQ(placement.NodeOf(1), 0);
  EXPECT_EQ(placement.NodeOf(2), 1);
  EXPECT_EQ(placement.NodeOf(4), 2);
  EXPECT_TRUE(placement.spans_nodes());
  EXPECT_TRUE(placement.local_peers().empty());
  EXPECT_EQ(placement.BootstrapRank(3), 0);
}

TEST(GroupPlacement, KnowsNodesThatAreConsecutiveAndThoseThatAreSubtrees) {
  const auto placement = [](std::vector<int> node_of_rank) {
    std::vector<int> ranks(node_of_rank.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return GroupPlacement(GroupOf(ranks, 0), NodeMap{std::move(node_of_rank)});
  };
  EXPECT_FALSE(placement({0, 1, 0, 1}).nodes_are_consecutive());
  EXPECT_FALSE(placement({0, 1, 0, 1}).nodes_are_subtrees());
  // The tree over the ranks is not a canonical tree over such nodes.
  const std::vector<std::vector<int>> others = {
      {0, 0, 0, 1, 1, 1}, {0, 0, 0, 0, 1, 1, 2, 2}, {0, 1, 1, 2, 2}};
  for (const std::vector<int>& nodes : others) {
    EXPECT_TRUE(placement(nodes).nodes_are_consecutive());
    EXPECT_FALSE(placement(nodes).nodes_are_subtrees());
  }
  const std::vector<std::vector<int>> subtrees = {{0, 1, 2}, {0, 0, 1, 1, 2}, {0, 0, 0, 0, 1, 1, 1}};
  for (const std::vector<int>& nodes : subtrees) EXPECT_TRUE(placement(nodes).nodes_are_subtrees());
}

TEST(GroupPlacement, ListsLocalPeersStartingAtTheCallersSuccessor) {
  const GroupPlacement placement(GroupOf({0, 1, 2, 3}, 2), NodeMap::OneNode(4));
  EXPECT_THAT(placement.local_peers(), ElementsAre(3, 0, 1));
  EXPECT_FALSE(placement.spans_nodes());
}

TEST(GroupPlacement, GivesEveryPartOneLeaderPerNodeAndSpreadsThePartsOverTheRanksOfTheNode) {
  std::vector<int> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  const GroupPlacement placement(GroupOf(ranks, 0), NodeMap::RanksPerNode(8, 4));
  std::set<int> leaders;
  for (int member = 0; member < 8; ++member) {
    EXPECT_EQ(placement.PartLeader(placement.NodeOf(member), member), member);
    if (placement.NodeOf(member) == 0) continue;
    const int leader = placement.PartLeader(0, member);
    EXPECT_EQ(placement.NodeOf(leader), 0);
    leaders.insert(leader);
  }
  EXPECT_EQ(leaders.size(), 4U);
}

TEST(GroupPlacement, SendsAPartialFromTheNodeThatHoldsItsSubtree) {
  std::vector<int> ranks(7);
  std::iota(ranks.begin(), ranks.end(), 0);
  const GroupPlacement placement(GroupOf(ranks, 0), NodeMap::RanksPerNode(7, 3));
  for (size_t i = 0; i < placement.subtrees().size(); ++i) {
    const NodeSubtree& subtree = placement.subtrees()[i];
    for (int target = 0; target < 7; ++target) {
      const int sender = placement.PartialSender(static_cast<int>(i), target);
      if (placement.NodeOf(target) == subtree.node) continue;
      EXPECT_EQ(placement.NodeOf(sender), subtree.node);
      EXPECT_TRUE(subtree.count > 1 || sender == subtree.lo);
    }
  }
}

TEST(GroupPlacement, GivesEveryPartOneLeaderPerDomainAndSpreadsTheCopies) {
  std::vector<int> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  const NodeMap nodes = NodeMap::RanksPerNode(8, 4);
  const NodeMap domains = NodeMap::RanksPerNode(8, 2);
  const auto tables = GroupPlacement::MakeTables(ranks, nodes, domains);
  for (int me = 0; me < 4; ++me) {
    const GroupPlacement placement(GroupOf(ranks, me), tables);
    EXPECT_TRUE(placement.spans_domains());
    EXPECT_EQ(placement.domain_size(), 2);
    std::vector<int> copies(8);
    for (int member = 0; member < 8; ++member) {
      const int leader = placement.DomainLeader(member);
      EXPECT_TRUE(placement.IsInDomain(leader));
      const int receiver = placement.PartLeader(placement.NodeOf(me), member);
      if (placement.IsInDomain(receiver)) {
        EXPECT_EQ(leader, receiver);
      } else {
        ++copies[static_cast<size_t>(leader)];
      }
    }
    EXPECT_EQ(copies[static_cast<size_t>(me)], 2);
  }
  EXPECT_FALSE(GroupPlacement(GroupOf(ranks, 0), nodes).spans_domains());
  EXPECT_FALSE(
      GroupPlacement(GroupOf({0, 1, 4, 5}, 0), GroupPlacement::MakeTables({0, 1, 4, 5}, nodes, domains))
          .spans_domains());
}

// As `mpirun --map-by numa` deals ranks to domains.
TEST(GroupPlacement, SpreadsTheCopiesIfRanksAlternateBetweenDomains) {
  constexpr int kRanks = 8;
  constexpr int kDomains = 2;
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  NodeMap domains;
  for (const int rank : ranks) domains.node_of_rank.push_back(rank % kDomains);
  const GroupPlacement placement(GroupOf(ranks, 0),
                                 GroupPlacement::MakeTables(ranks, NodeMap::OneNode(kRanks), domains));
  std::vector<int> copies(kRanks);
  for (const int member : ranks) {
    if (!placement.IsInDomain(member)) ++copies[static_cast<size_t>(placement.DomainLeader(member))];
  }
  EXPECT_THAT(copies, ElementsAre(1, 0, 1, 0, 1, 0, 1, 0));
}

}  // namespace
}  // namespace weft
