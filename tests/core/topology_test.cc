#include "weft/core/topology.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/core/base/hwloc_topology.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

constexpr int64_t kKib = 1024;
constexpr int64_t kMib = 1024 * kKib;

TEST(HwlocTopology, CountsProcessorsAndNumaNodes) {
  const Topology topology = internal::HwlocTopology("numa:2 core:3 pu:2").Describe();
  EXPECT_EQ(topology.numa_nodes, 2);
  EXPECT_EQ(topology.cores, 6);
  EXPECT_EQ(topology.cpus, 12);
}

TEST(HwlocTopology, ReportsTheLargestDataCacheOfACoreAndOfAnyLevel) {
  const Topology topology = internal::HwlocTopology(
                                "l3:1(size=37748736) l2:2(size=1048576) l1d:1(size=32768) "
                                "l1i:1(size=4194304) core:1 pu:1")
                                .Describe();
  EXPECT_EQ(topology.core_cache_bytes, kMib);
  EXPECT_EQ(topology.last_level_cache_bytes, 36 * kMib);
}

TEST(HwlocTopology, ReportsACacheOfTheFirstLevelWhereThereIsNoOther) {
  const Topology topology = internal::HwlocTopology("l1d:1(size=49152) core:1 pu:1").Describe();
  EXPECT_EQ(topology.core_cache_bytes, 48 * kKib);
  EXPECT_EQ(topology.last_level_cache_bytes, 48 * kKib);
}

TEST(HwlocTopology, ReportsNoCacheWhereTheHostDescribesNone) {
  const Topology topology = internal::HwlocTopology("core:1 pu:1").Describe();
  EXPECT_EQ(topology.core_cache_bytes, 0);
  EXPECT_EQ(topology.last_level_cache_bytes, 0);
}

TEST(HwlocTopology, FindsTheNumaNodeOfAThreadThatIsBoundToOne) {
  const internal::HwlocTopology host("numa:2 core:3 pu:2");  // CPUs 0 to 5, and 6 to 11.
  EXPECT_THAT(host.NumaNodeOf({0}), Optional(0));
  EXPECT_THAT(host.NumaNodeOf({6, 11}), Optional(1));
}

TEST(HwlocTopology, FindsNoNumaNodeOfAThreadThatMayRunOnSeveral) {
  const internal::HwlocTopology host("numa:2 core:3 pu:2");
  EXPECT_EQ(host.NumaNodeOf({5, 6}), std::nullopt);
  EXPECT_EQ(host.NumaNodeOf({}), std::nullopt);
  EXPECT_EQ(host.NumaNodeOf({0, 12}), std::nullopt);  // The host has no CPU 12.
}

TEST(HwlocTopology, PrefersTheMemoryThatIsNumberedFirstBesideTheSameCpus) {
  const internal::HwlocTopology host("package:2 [numa] [numa] core:2 pu:1");
  const std::optional<int> first = host.NumaNodeOf({0, 1});
  const std::optional<int> second = host.NumaNodeOf({2, 3});
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_LT(*first, *second);
  EXPECT_EQ(host.NumaNodeOf({0}), first);
  EXPECT_EQ(host.NumaNodeOf({1, 2}), std::nullopt);
}

TEST(HwlocTopology, CountsMemoryBesideTheSameCpusOnce) {
  EXPECT_EQ(internal::HwlocTopology("package:2 [numa] [numa] core:2 pu:1").Describe().numa_nodes, 2);
  EXPECT_EQ(internal::HwlocTopology("package:1 [numa] [numa] core:4 pu:1").Describe().numa_nodes, 1);
  EXPECT_EQ(internal::HwlocTopology("numa:4 core:2 pu:1").Describe().numa_nodes, 4);
}

TEST(HostTopology, HasPlausibleCounts) {
  const Topology& host = HostTopology();
  EXPECT_GE(host.cpus, host.cores);
  EXPECT_GE(host.cores, 1);
  EXPECT_GE(host.numa_nodes, 1);
}

TEST(HostTopology, HasALastLevelCacheNoSmallerThanThatOfACore) {
  EXPECT_GE(HostTopology().core_cache_bytes, 16 * kKib);
  EXPECT_GE(HostTopology().last_level_cache_bytes, HostTopology().core_cache_bytes);
}

TEST(AffinityCpus, AreDistinctAndAtLeastOne) {
  const std::vector<int> cpus = AffinityCpus();
  EXPECT_FALSE(cpus.empty());
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
  EXPECT_EQ(std::adjacent_find(cpus.begin(), cpus.end()), cpus.end());
}

TEST(AffinityCpus, FollowTheAffinityOfTheCallingThread) {
  const int first = AffinityCpus().front();
  cpu_set_t original;
  ASSERT_EQ(sched_getaffinity(0, sizeof(original), &original), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_THAT(AffinityCpus(), ElementsAre(first));
  EXPECT_THAT(CpuCountOfProcess(getpid()), Optional(1));
  EXPECT_TRUE(BoundNumaNode().has_value());  // One CPU belongs to one NUMA node.
  ASSERT_EQ(sched_setaffinity(0, sizeof(original), &original), 0);
}

TEST(CpuCountOfProcess, CountsTheCpusOfThisProcess) {
  EXPECT_THAT(CpuCountOfProcess(getpid()), Optional(static_cast<int>(AffinityCpus().size())));
}

TEST(CpuCountOfProcess, IsUnknownForAProcessThatDoesNotExist) {
  EXPECT_FALSE(CpuCountOfProcess(std::numeric_limits<int>::max()).has_value());
}

}  // namespace
}  // namespace weft
