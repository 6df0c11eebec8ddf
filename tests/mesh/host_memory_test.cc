// Free memory and CPU time within the limits of control groups, of both versions.
#include "weft/mesh/host_memory.h"

#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/cpu_quota.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

class ControlGroups : public ::testing::Test {
 protected:
  void WriteVersion1(const std::string& group, int64_t limit, int64_t usage, int64_t cache = 0) {
    folder_.Write("memory" + group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    folder_.Write("memory" + group + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    folder_.Write("memory" + group + "/memory.stat",
                  "cache 7\ntotal_inactive_file " + std::to_string(cache) + "\n");
  }
  void WriteVersion2(const std::string& group, const std::string& limit, int64_t usage) {
    folder_.Write("." + group + "/memory.max", limit + "\n");
    folder_.Write("." + group + "/memory.current", std::to_string(usage) + "\n");
  }
  uint64_t Headroom(const std::string& membership) const {
    return internal::ControlGroupHeadroom(folder_.Write("membership", membership), folder_.str());
  }
  TempFolder folder_;
};

TEST_F(ControlGroups, HaveNoLimitWithoutFiles) { EXPECT_EQ(Headroom("4:memory:/a\n0::/b\n"), kNoLimit); }

TEST_F(ControlGroups, OfVersion1LimitTheirMembers) {
  WriteVersion1("/jobs/1", 1000, 300, 50);
  EXPECT_EQ(Headroom("4:memory:/jobs/1\n0::/\n"), 750);
  EXPECT_EQ(Headroom("4:cpu,memory:/jobs/1\n"), 750);
  EXPECT_EQ(Headroom("4:memory:/jobs/2\n"), kNoLimit);
}

TEST_F(ControlGroups, OfVersion2LimitTheirMembers) {
  WriteVersion2("/jobs/1", "1000", 300);
  EXPECT_EQ(Headroom("0::/jobs/1\n"), 700);
  WriteVersion2("/jobs/1", "max", 300);
  EXPECT_EQ(Headroom("0::/jobs/1\n"), kNoLimit);
}

TEST_F(ControlGroups, AreLimitedByTheGroupsThatContainThem) {
  WriteVersion2("/jobs/1", "1000", 300);
  WriteVersion2("/jobs", "400", 350);
  EXPECT_EQ(Headroom("0::/jobs/1\n"), 50);
  WriteVersion2("", "340", 330);  // A container sees its own group at the root.
  EXPECT_EQ(Headroom("0::/jobs/1\n"), 10);
}

TEST_F(ControlGroups, LeaveNothingBeyondTheirLimit) {
  WriteVersion1("", 100, 300);
  EXPECT_EQ(Headroom(""), 0);
}

TEST_F(ControlGroups, IgnoreMalformedMembershipLines) {
  WriteVersion2("/jobs", "400", 350);
  EXPECT_EQ(Headroom("nonsense\n0::jobs\n0::/../jobs\n:\n"), kNoLimit);
}

TEST_F(ControlGroups, HaveTheQuotasOfTheirChain) {
  const auto quotas = [&](const std::string& membership) {
    return internal::ControlGroupQuotas(folder_.Write("membership", membership), folder_.str());
  };
  const auto cpus = [&](const std::string& membership) {
    std::vector<double> found;
    for (const CpuQuota& quota : quotas(membership)) found.push_back(quota.cpus);
    return found;
  };
  EXPECT_THAT(cpus("3:cpu,cpuacct:/a\n0::/b\n"), IsEmpty());
  folder_.Write("b/cpu.max", "max 100000\n");
  EXPECT_THAT(cpus("0::/b/c\n"), IsEmpty());
  folder_.Write("b/cpu.max", "250000 100000\n");
  folder_.Write("b/c/cpu.max", "50000 100000\n");
  folder_.Write("b/d/cpu.max", "50000 100000\n");
  EXPECT_THAT(cpus("0::/b/c\n"), ElementsAre(0.5, 2.5));
  EXPECT_EQ(quotas("0::/b/c\n")[1].group, quotas("0::/b/d\n")[1].group);
  EXPECT_NE(quotas("0::/b/c\n")[0].group, quotas("0::/b/d\n")[0].group);
  folder_.Write("cpu/a/cpu.cfs_period_us", "100000\n");
  folder_.Write("cpu/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_THAT(cpus("3:cpu,cpuacct:/a\n"), IsEmpty());
  folder_.Write("cpu/a/cpu.cfs_quota_us", "400000\n");
  EXPECT_THAT(cpus("3:cpu,cpuacct:/a\n"), ElementsAre(4));
}

TEST(AvailableHostMemory, IsKnown) {
  ASSERT_OK_AND_ASSIGN(const size_t bytes, AvailableHostMemory());
  EXPECT_GT(bytes, 0);
}

TEST(ResidentBytes, AreAtLeastOneMebibyte) { EXPECT_GT(ResidentBytes(), 1 << 20); }

}  // namespace
}  // namespace weft
