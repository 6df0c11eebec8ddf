#include "weft/mesh/rank_cpus.h"

#include <gtest/gtest.h>

#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/topology.h"
#include "weft/mesh/cpu_quota.h"

namespace weft::testing {
namespace {

TEST(RankCpus, AreDividedAmongTheRanksThatMayRunOnThem) {
  const auto has_core = [](std::vector<std::vector<int>> of_rank) {
    return RankCpus{std::move(of_rank), 0}.Share() >= 1;
  };
  EXPECT_TRUE(has_core({{0}, {1}, {2}, {3}}));       // Each rank is bound to one core.
  EXPECT_FALSE(has_core({{0}, {0}}));                // Two ranks are bound to the same one.
  EXPECT_FALSE(has_core({{0, 1}, {0, 1}, {0, 1}}));  // More ranks than cores.
  EXPECT_TRUE(has_core({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}));
  EXPECT_TRUE(has_core({{0, 4}, {0}, {1}, {2}}));
}

TEST(RankCpus, ShareTheQuotaOfTheirControlGroup) {
  RankCpus cpus{{{0, 1, 2, 3}, {0, 1, 2, 3}}, 0, {{3, 2}}};
  EXPECT_NEAR(cpus.Share(), 1.5, 1e-5);
  EXPECT_TRUE(cpus.IsLimitedByQuota());
  cpus.quota->ranks = 1;  // A group of its own.
  EXPECT_NEAR(cpus.Share(), 2, 1e-5);
  cpus.quota = {5, 2};  // More than its CPUs.
  EXPECT_NEAR(cpus.Share(), 2, 1e-5);
  EXPECT_FALSE(cpus.IsLimitedByQuota());
}

TEST(RankCpus, AreThoseOfTheNode) {
  RunRanks(NodeMap::RanksPerNode(3, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankCpus cpus, ExchangeRankCpus(bootstrap, absl::OkStatus(), kTestTimeout));
    EXPECT_EQ(cpus.of_rank.size(), bootstrap.rank() == 2 ? 1u : 2u);
    EXPECT_EQ(cpus.self, bootstrap.rank() % 2);
    EXPECT_EQ(cpus.quota.has_value(), !CpuQuotas().empty());
    if (cpus.quota) {
      EXPECT_EQ(cpus.quota->ranks, std::ssize(cpus.of_rank));
    }
    for (const std::vector<int>& of_rank : cpus.of_rank) EXPECT_EQ(of_rank, AffinityCpus());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
