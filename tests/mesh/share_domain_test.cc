#include "weft/mesh/share_domain.h"

#include <filesystem>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kNotBound = NodeMap::kNotBound;

void ExpectDomains(const NodeMap& nodes, ShareDomain wanted, ShareDomain kind,
                   const std::vector<int>& domains, const char* reason) {
  ASSERT_OK_AND_ASSIGN(const ShareDomains chosen, ChooseShareDomains(nodes, wanted));
  EXPECT_EQ(chosen.kind, kind);
  EXPECT_EQ(chosen.map.node_of_rank, domains);
  EXPECT_THAT(chosen.ToString(), HasSubstr(reason));
}

TEST(ChooseShareDomains, TakesTheNumaNodesToWhichRanksAreBound) {
  const NodeMap nodes{{0, 0, 0, 0, 1, 1}, {0, 0, 1, 1, 0, 1}};
  for (const ShareDomain wanted : {ShareDomain::kAuto, ShareDomain::kNuma}) {
    ExpectDomains(nodes, wanted, ShareDomain::kNuma, {0, 0, 1, 1, 2, 3},
                  "numa: ranks are bound to 4 NUMA nodes of 2 nodes");
  }
}

TEST(ChooseShareDomains, NumbersDomainsInTheOrderOfTheirLowestRanks) {
  ExpectDomains({{0, 0, 0, 0}, {3, 1, 3, 1}}, ShareDomain::kNuma, ShareDomain::kNuma, {0, 1, 0, 1}, "numa");
}

TEST(ChooseShareDomains, TakesTheNodeIfOneNumaNodeHasAllItsRanks) {
  const NodeMap nodes{{0, 0, 1, 1}, {1, 1, 0, 0}};
  ExpectDomains(nodes, ShareDomain::kAuto, ShareDomain::kNode, {0, 0, 1, 1},
                "node: the ranks of each node are bound to one NUMA node");
  ExpectDomains(nodes, ShareDomain::kNuma, ShareDomain::kNuma, {0, 0, 1, 1}, "2 NUMA nodes of 2 nodes");
}

TEST(ChooseShareDomains, TakesTheNodeIfSomeRankIsNotBound) {
  ExpectDomains({{0, 0, 0}, {0, 1, kNotBound}}, ShareDomain::kAuto, ShareDomain::kNode, {0, 0, 0},
                "node: rank 2 may run on several NUMA nodes");
  ExpectDomains({{0, 0}}, ShareDomain::kAuto, ShareDomain::kNode, {0, 0}, "rank 0 may run on several");
}

TEST(ChooseShareDomains, RefusesNumaForARankThatIsNotBound) {
  EXPECT_THAT(ChooseShareDomains({{0, 0, 0}, {0, kNotBound, 1}}, ShareDomain::kNuma),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::AllOf(HasSubstr("rank 1 may run on several NUMA nodes"),
                                        HasSubstr("mpirun --map-by numa --bind-to numa"))));
}

TEST(ChooseShareDomains, TakesWhatIsGivenWhateverTheBinding) {
  const NodeMap nodes{{0, 0, 1, 1}, {0, 1, 0, 1}};
  ExpectDomains(nodes, ShareDomain::kNode, ShareDomain::kNode, {0, 0, 1, 1}, "node: chosen");
  ExpectDomains(nodes, ShareDomain::kNone, ShareDomain::kNone, {0, 1, 2, 3}, "none: chosen");
}

TEST(DefaultShareDomain, IsThatOfTheEnvironment) {
  const ScopedVariable unset_variable("WEFT_SHARE_DOMAIN", nullptr);
  ASSERT_OK_AND_ASSIGN(const ShareDomain unset, DefaultShareDomain());
  EXPECT_EQ(unset, ShareDomain::kAuto);
  const ScopedVariable none("WEFT_SHARE_DOMAIN", "none");
  ASSERT_OK_AND_ASSIGN(const ShareDomain given, DefaultShareDomain());
  EXPECT_EQ(given, ShareDomain::kNone);
  const ScopedVariable socket("WEFT_SHARE_DOMAIN", "socket");
  EXPECT_THAT(DefaultShareDomain(), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("WEFT_SHARE_DOMAIN is 'socket': it must be auto")));
}

TEST(NumaNodeOfEnvironment, ExistsOnThisHost) {
  const ScopedVariable first("WEFT_NUMA_NODE", "0");
  ASSERT_OK_AND_ASSIGN(const std::optional<int> node, NumaNodeFromEnvironment());
  EXPECT_EQ(node, 0);
  if (!std::filesystem::exists("/sys/devices/system/node/online")) GTEST_SKIP() << "the system hides them";
  const ScopedVariable missing("WEFT_NUMA_NODE", "4095");
  EXPECT_THAT(NumaNodeFromEnvironment(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("WEFT_NUMA_NODE is '4095', but the NUMA nodes of this host are ")));
}

}  // namespace
}  // namespace weft::testing
