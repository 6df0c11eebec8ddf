#include "weft/train/thread_plan.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/launch_environment.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Cpus = std::vector<int>;

TEST(ThreadPlan, GivesOneRankAllCpus) {
  const ThreadPlan plan = PlanThreads({{{{0, 1, 2, 3}}, 0}, 4, {}});
  EXPECT_EQ(plan.threads, 4);
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(ThreadPlan, DividesCpusAmongRanksThatAreNotBound) {
  const Cpus all = {0, 1, 2, 3, 4, 5};
  const ThreadPlan plan = PlanThreads({{{all, all, all}, 1}, 6, {}});
  EXPECT_EQ(plan.threads, 2);
  EXPECT_EQ(plan.reason, "6 CPUs shared by 3 ranks");
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(ThreadPlan, RoundsDownIfRanksDoNotDivideTheCpus) {
  const Cpus all = {0, 1, 2, 3, 4};
  EXPECT_EQ(PlanThreads({{{all, all}, 0}, 5, {}}).threads, 2);
}

TEST(ThreadPlan, UsesTheCpusThatRanksAreBoundTo) {
  const ThreadPlan plan = PlanThreads({{{{0, 1, 2}, {3, 4, 5}}, 1}, 6, {}});
  EXPECT_EQ(plan.threads, 3);
  EXPECT_EQ(plan.reason, "3 CPUs of its own");
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(ThreadPlan, WarnsWhenRanksAreBoundToFewerCpusThanThereAre) {
  const ThreadPlan plan = PlanThreads({{{{0}, {1}}, 0}, 8, {}});
  EXPECT_EQ(plan.threads, 1);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("2 ranks may use only 2 CPUs of the 8")));
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("--bind-to none")));
}

TEST(ThreadPlan, NamesTheFlagOfTheLauncher) {
  NodePlacement placement = {{{{0}, {1}}, 0}, 8, {}};
  placement.unbound_start = "srun --cpu-bind=none";
  EXPECT_THAT(PlanThreads(placement).warnings, ElementsAre(HasSubstr("start with srun --cpu-bind=none")));
}

TEST(ThreadPlan, NamesTheFlagOfWeftLaunchIfThatStartedTheRanks) {
  const testing::ScopedVariable rank("OMPI_COMM_WORLD_RANK", "0");
  const auto unbound_start = [](const char* launch_command) {
    const testing::ScopedVariable variable(kLaunchCommandVariable, launch_command);
    std::string start;
    EXPECT_OK(RunThreadRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) {
      const auto placement = FindPlacement(bootstrap, absl::Seconds(10));
      if (placement.ok()) start = placement->unbound_start;
      return placement.status();
    }));
    return start;
  };
  EXPECT_EQ(unbound_start(nullptr), "mpirun --bind-to none");
  EXPECT_EQ(unbound_start("weft launch -n 1 --"), "weft launch --bind none");
}

TEST(ThreadPlan, WarnsWhenRanksAreBoundToOneCpu) {
  const ThreadPlan plan = PlanThreads({{{{0}, {0}}, 0}, 4, {}});
  EXPECT_EQ(plan.threads, 1);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("--bind-to none")));
}

TEST(ThreadPlan, WarnsWhenThereAreMoreRanksThanCpus) {
  const ThreadPlan plan = PlanThreads({{{{0, 1}, {0, 1}, {0, 1}, {0, 1}}, 3}, 2, {}});
  EXPECT_EQ(plan.threads, 1);
  EXPECT_THAT(plan.warnings, ElementsAre(HasSubstr("4 ranks share 2 CPUs: start at most 2 ranks per node")));
  EXPECT_THAT(PlanThreads({{{{0}, {0}}, 0}, 1, {}}).warnings,
              ElementsAre(HasSubstr("2 ranks share 1 CPU: start at most 1 rank per node")));
}

TEST(ThreadPlan, StaysWithinTheQuotaOfTheControlGroup) {
  NodePlacement placement = {{{{0, 1, 2, 3, 4, 5, 6, 7}}, 0, {{2.5, 1}}}, 8, {}};
  const ThreadPlan one = PlanThreads(placement);
  EXPECT_EQ(one.threads, 2);
  EXPECT_EQ(one.reason, "8 CPUs of its own; its control group limits 1 rank to the time of 2.5 CPUs");
  EXPECT_THAT(one.warnings, IsEmpty());
  placement.cpus.of_rank.assign(4, placement.cpus.of_rank[0]);
  placement.cpus.quota->ranks = 4;
  const ThreadPlan four = PlanThreads(placement);
  EXPECT_EQ(four.threads, 1);
  EXPECT_THAT(four.warnings, ElementsAre(HasSubstr("4 ranks share the time of 2.5 CPUs")));
}

TEST(ThreadPlan, StaysWithinTheLimit) {
  const ThreadPlan plan = PlanThreads({{{{0, 1, 2, 3}}, 0}, 4, 2});
  EXPECT_EQ(plan.threads, 2);
  EXPECT_THAT(plan.reason, HasSubstr("OMP_NUM_THREADS"));
  EXPECT_EQ(PlanThreads({{{{0, 1}}, 0}, 2, 64}).threads, 2);
}

TEST(ThreadPlan, SeesTheRanksOfItsOwnNodeOnly) {
  const absl::Status status = RunThreadRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) {
    const auto placement = FindPlacement(bootstrap, absl::Seconds(10));
    EXPECT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(placement->cpus.of_rank.size(), 2);
    EXPECT_EQ(placement->cpus.self, bootstrap.rank() % 2);
    EXPECT_GE(placement->node_cpus, 1);
    EXPECT_FALSE(placement->cpus.of_rank[0].empty());
    return placement.status();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace weft
