#include "weft/sharding/residency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A case in which images cannot be shared, and its reason.
struct Obstacle {
  std::function<void(ShardingPolicy&)> change;
  NodeMap nodes = NodeMap::OneNode(4);
  int shard_size = 2;
  ShareDomain domain = ShareDomain::kAuto;
  const char* reason;

  ShareDomains Domains() const { return *ChooseShareDomains(nodes, domain); }
};

std::vector<Obstacle> Obstacles() {
  const auto nothing = [](ShardingPolicy&) {};
  return {
      {.change = nothing, .shard_size = 1, .reason = "a shard group of one rank"},
      {.change = nothing,
       .nodes = NodeMap::RanksPerNode(4, 1),
       .reason = "no two ranks of a shard group share a node"},
      {.change = nothing,
       .nodes = {{0, 0, 0, 0}, {0, 1, 0, 1}},
       .reason = "no two ranks of a shard group share a NUMA node"},
      {.change = nothing, .domain = ShareDomain::kNone, .reason = "the share domain is none"},
      {.change = [](ShardingPolicy& policy) { policy.layout = FlatKind::kPerParameter; },
       .reason = "zero copy is off"},
      {.change = [](ShardingPolicy& policy) { policy.reshard_after_forward_size = 2; },
       .reason = "reshard_after_forward_size is 2"},
  };
}

// Expects this choice under kAuto and kOn, with `phrases` in its description.
void ExpectShared(const std::vector<NodeMap>& all_nodes, int shard_size, Residency residency,
                  const std::vector<std::string>& phrases, ShareDomain domain = ShareDomain::kAuto) {
  for (const NodeMap& nodes : all_nodes) {
    for (const NodeShared node_shared : {NodeShared::kAuto, NodeShared::kOn}) {
      ShardingPolicy policy;
      policy.node_shared = node_shared;
      ASSERT_OK_AND_ASSIGN(const ResidencyChoice choice,
                           ChooseResidency(policy, *ChooseShareDomains(nodes, domain), shard_size));
      EXPECT_EQ(choice.residency, residency);
      for (const std::string& phrase : phrases) EXPECT_THAT(choice.ToString(), HasSubstr(phrase));
    }
  }
}

TEST(ChooseResidency, IsInPlaceIfEachShardGroupLiesOnOneNode) {
  ExpectShared({NodeMap::OneNode(4), NodeMap::RanksPerNode(4, 2)}, 2, Residency::kInPlace,
               {"in place: ", "one copy of the weights"});
}

TEST(ChooseResidency, IsSharedOnEachNodeIfShardGroupsSpanNodes) {
  ExpectShared({NodeMap::RanksPerNode(4, 2), NodeMap{{0, 0, 1, 2}}, NodeMap{{0, 1, 0, 2}}}, 4,
               Residency::kNodeShared, {"shared on each node: ", "span nodes"});
}

TEST(ChooseResidency, TakesNumaNodesInThePlaceOfNodes) {
  const NodeMap pairs{{0, 0, 0, 0}, {0, 0, 1, 1}};
  ExpectShared({pairs}, 2, Residency::kInPlace, {"each shard group is on one NUMA node"});
  ExpectShared({pairs, {{0, 0, 0, 0}, {0, 1, 0, 1}}, {{0, 0, 1, 1}, {0, 1, 0, 0}}}, 4, Residency::kNodeShared,
               {"shard groups span NUMA nodes", "the ranks on each NUMA node gather"});
  ExpectShared({pairs}, 4, Residency::kInPlace, {"each shard group is on one node"}, ShareDomain::kNode);
}

TEST(ResolvePrefetch, PrefetchesOneMoreBetweenNodesByDefault) {
  for (const NodeMap& nodes :
       {NodeMap::RanksPerNode(4, 1), NodeMap::RanksPerNode(4, 2), NodeMap{{0, 0, 0, 1}}}) {
    EXPECT_EQ(ResolvePrefetch({}, nodes, 4).PrefetchDepth(), 2);
    for (int depth = 0; depth <= ShardingPolicy::kMaxPrefetchDepth; ++depth) {
      ShardingPolicy policy;
      policy.prefetch_depth = depth;
      EXPECT_EQ(ResolvePrefetch(policy, nodes, 4).PrefetchDepth(), depth);
    }
  }
  EXPECT_EQ(ResolvePrefetch({}, NodeMap::OneNode(4), 4).PrefetchDepth(), 1);
  EXPECT_EQ(ResolvePrefetch({}, NodeMap::RanksPerNode(4, 2), 2).PrefetchDepth(), 1);
}

TEST(ChooseResidency, IsPrivateOtherwiseAndSaysWhy) {
  for (const Obstacle& obstacle : Obstacles()) {
    ShardingPolicy policy;
    obstacle.change(policy);
    ASSERT_OK_AND_ASSIGN(const ResidencyChoice choice,
                         ChooseResidency(policy, obstacle.Domains(), obstacle.shard_size));
    EXPECT_EQ(choice.residency, Residency::kPrivate);
    EXPECT_THAT(choice.ToString(), AllOf(HasSubstr("private: "), HasSubstr(obstacle.reason)));
    policy.node_shared = NodeShared::kOn;
    EXPECT_THAT(ChooseResidency(policy, obstacle.Domains(), obstacle.shard_size),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("is required (on), but"), HasSubstr(obstacle.reason))));
  }
}

TEST(ChooseResidency, IsPrivateWhenTold) {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOff;
  ASSERT_OK_AND_ASSIGN(
      const ResidencyChoice choice,
      ChooseResidency(policy, *ChooseShareDomains(NodeMap::OneNode(2), ShareDomain::kNode), 2));
  EXPECT_EQ(choice.residency, Residency::kPrivate);
  EXPECT_THAT(choice.ToString(), HasSubstr("node sharing is off"));
}

}  // namespace
}  // namespace weft::testing
