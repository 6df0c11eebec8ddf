#include "src/launch/mpirun_command.h"

#include <cstdint>
#include <limits>

#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::weft::testing::StatusIs;

std::optional<internal::NumaMapping> Mapping(const LaunchOptions& options, int host_numa_nodes) {
  return internal::MapToNumaNodes(options, host_numa_nodes, /*in_slurm_job=*/false);
}

std::string Joined(const LaunchOptions& options, int host_numa_nodes = 1) {
  return absl::StrJoin(
      internal::MpirunCommand(options, Mapping(options, host_numa_nodes), "/x/weft host-daemon /d",
                              {"OMP_A", "WEFT_B"}, {"/x/weft", "train", "--steps", "2"}),
      "|");
}

TEST(MpirunCommand, StartsOnAllSlotsOfThisHostByDefault) {
  EXPECT_EQ(Joined({}),
            "mpirun|--map-by|slot|--bind-to|none|--mca|orte_launch_agent|/x/weft host-daemon /d orted"
            "|-x|OMP_A|-x|WEFT_B|/x/weft|train|--steps|2");
}

TEST(MpirunCommand, PassesEveryOptionOn) {
  LaunchOptions options;
  options.ranks = 4;
  options.hosts = "a:2,b:2";
  options.oversubscribe = true;
  options.mca = {{"btl_tcp_if_include", "eth0"}, {"a", "b c"}};
  const std::string command = Joined(options);
  EXPECT_THAT(command, HasSubstr("mpirun|-n|4|--host|a:2,b:2|--oversubscribe|"));
  EXPECT_THAT(command, HasSubstr("|--mca|btl_tcp_if_include|eth0|--mca|a|b c|-x|"));
  LaunchOptions file;
  file.hostfile = "hosts.txt";
  EXPECT_THAT(Joined(file), HasSubstr("mpirun|--hostfile|hosts.txt|"));
}

TEST(MpirunCommand, BindsRanksToTheNumaNodesOfAHostThatHasSeveral) {
  LaunchOptions options;
  options.ranks = 8;
  EXPECT_THAT(Joined(options), HasSubstr("|--map-by|slot|--bind-to|none|"));
  EXPECT_THAT(Joined(options, 2), HasSubstr("|--map-by|ppr:4:numa|--bind-to|numa:overload-allowed|"));
  EXPECT_THAT(Mapping(options, 2)->ToString(), HasSubstr("the 2 NUMA nodes of each host, 4 on each"));
  options.hosts = "a:4,b:4";
  EXPECT_THAT(Joined(options, 2), HasSubstr("|--map-by|ppr:2:numa|--bind-to|numa:overload-allowed|"));
  // How many ranks a NUMA node gets is not known, or not the same for all.
  for (const char* hosts : {"a:6,b:2", "a:8,b:8", "a:4,a:4"}) {
    options.hosts = hosts;
    EXPECT_THAT(Joined(options, 2), HasSubstr("|--map-by|numa|--bind-to|numa:overload-allowed|")) << hosts;
  }
  options.bind = RankBinding::kNuma;
  options.ranks = 2;
  options.hosts = "a,a:1";  // One host of two slots.
  EXPECT_THAT(Joined(options, 1), HasSubstr("|--map-by|numa|--bind-to|numa:overload-allowed|"));
  options.bind = std::nullopt;
  options.ranks = 8;
  options.hosts = "";
  EXPECT_THAT(Joined(options, 3), HasSubstr("|--map-by|numa|--bind-to|numa:overload-allowed|"));
  EXPECT_THAT(Mapping(options, 3)->ToString(), HasSubstr("the 3 NUMA nodes of each host, in turn"));
}

TEST(MpirunCommand, BindsRanksByDefaultOnlyIfEachHostIsKnownToHaveOneForEachNumaNode) {
  const auto is_bound = [](std::optional<int64_t> ranks, const char* hosts, std::optional<RankBinding> bind) {
    LaunchOptions options;
    options.ranks = ranks;
    options.hosts = hosts;
    options.bind = bind;
    return Mapping(options, 2).has_value();
  };
  for (const char* hosts : {"a,b", "a:1,b:1", "a:4,b:1", "a,b:4", "a:2,b,b:2,c:1"}) {
    EXPECT_FALSE(is_bound({}, hosts, {})) << hosts;
    EXPECT_TRUE(is_bound({}, hosts, RankBinding::kNuma)) << hosts;
  }
  for (const char* hosts : {"a:2,b:2", "a,b:2,a", "a:2"}) {
    EXPECT_TRUE(is_bound({}, hosts, {})) << hosts;
  }
  // mpirun fills one host after another.
  for (const int64_t ranks : {1, 5}) EXPECT_FALSE(is_bound(ranks, "a:4,b:4", {})) << ranks;
  for (const int64_t ranks : {2, 3, 4, 6, 7, 8}) EXPECT_TRUE(is_bound(ranks, "a:4,b:4", {})) << ranks;
  EXPECT_FALSE(is_bound(8, "a:7,b:4", {}));  // b may have four ranks, or one.
}

TEST(MpirunCommand, BindsNoRanksByDefaultWhereThoseOfAHostAreNotKnown) {
  LaunchOptions options;
  options.ranks = 8;
  EXPECT_FALSE(internal::MapToNumaNodes(options, 2, /*in_slurm_job=*/true));
  LaunchOptions file = options;
  file.hostfile = "hosts.txt";
  EXPECT_FALSE(Mapping(file, 2));
  for (LaunchOptions* unknown : {&options, &file}) {
    unknown->bind = RankBinding::kNuma;
    const auto mapping = internal::MapToNumaNodes(*unknown, 2, /*in_slurm_job=*/true);
    ASSERT_TRUE(mapping);
    EXPECT_EQ(mapping->ranks_on_each, std::nullopt);
  }
}

TEST(MpirunCommand, BindsNoRanksIfThatCannotSpreadThemOrIsNotWanted) {
  LaunchOptions options;
  options.ranks = 1;
  EXPECT_THAT(Joined(options, 2), HasSubstr("|--bind-to|none|"));
  options.ranks = 8;
  options.oversubscribe = true;
  EXPECT_THAT(Joined(options, 2), HasSubstr("|--bind-to|none|"));
  options.bind = RankBinding::kNuma;
  EXPECT_THAT(Joined(options, 2), HasSubstr("|--map-by|ppr:4:numa|--bind-to|numa:overload-allowed|"));
  options.oversubscribe = false;
  options.bind = RankBinding::kNone;
  EXPECT_THAT(Joined(options, 2), HasSubstr("|--bind-to|none|"));
}

TEST(MpirunCommand, ExportsTheVariablesThatRanksRead) {
  EXPECT_THAT(internal::ExportedNames({"HOME=/root", "WEFT_TIMEOUT_S=6", "OMP_NUM_THREADS=1", "NOT_WEFT_X=1",
                                       "GOMP_SPINCOUNT=1000", "OMPI_MCA_x=1"}),
              ElementsAre("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "WEFT_TIMEOUT_S"));
}

TEST(MpirunCommand, PutsAllFilesOfOpenMpiIntoTheFolder) {
  EXPECT_THAT(internal::FolderVariables("/d"), ElementsAre(Pair("OMPI_MCA_orte_tmpdir_base", "/d"),
                                                           Pair("OMPI_MCA_btl_vader_backing_directory", "/d"),
                                                           Pair("OMPI_MCA_osc_sm_backing_directory", "/d")));
}

TEST(MpirunCommand, AllowsRootOnlyToRoot) {
  const auto root = Pair("OMPI_ALLOW_RUN_AS_ROOT", "1");
  EXPECT_THAT(internal::DefaultVariables(true), ::testing::Contains(root));
  EXPECT_THAT(internal::DefaultVariables(false), ::testing::Not(::testing::Contains(root)));
}

TEST(LaunchOptions, KnowsIfAllRanksRunOnThisHost) {
  EXPECT_TRUE(internal::RanksAreLocal({}, false));
  EXPECT_FALSE(internal::RanksAreLocal({}, true));
  LaunchOptions hosts;
  hosts.hosts = "a";
  EXPECT_FALSE(internal::RanksAreLocal(hosts, false));
  LaunchOptions file;
  file.hostfile = "f";
  EXPECT_FALSE(internal::RanksAreLocal(file, false));
}

LaunchOptions With(std::optional<int64_t> ranks, std::string hosts, bool oversubscribe = false) {
  LaunchOptions options;
  options.ranks = ranks;
  options.hosts = std::move(hosts);
  options.oversubscribe = oversubscribe;
  return options;
}

TEST(LaunchOptions, AreRefusedWithTheFlagAndTheRemedy) {
  const auto refused = [](const LaunchOptions& options, const char* message) {
    EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refused(With(0, ""), "-n 0 must be positive");
  refused(With(-3, ""), "-n -3 must be positive");
  for (const char* hosts : {"a:", "a:0", "a:x", "a:-1", ":2", "a,,b", "a,", ",", "a:1:2", "a:1000001",
                            "a:9223372036854775807,b:9223372036854775807", "a:99999999999999999999"}) {
    refused(With({}, hosts), "write node1:4,node2:4");
  }
  refused(With(3, "a,b"),
          "-n 3 needs as many slots, but --host has 2: write node1:4,node2:4, or add --oversubscribe");
  LaunchOptions options;
  options.max_restarts = -1;
  refused(options, "--max-restarts -1 must not be negative");
  options.max_restarts = std::numeric_limits<int64_t>::max();
  refused(options, "--max-restarts 9223372036854775807 must be at most 1000000");
  options = {};
  options.restart_delay_s = -1;
  refused(options, "--restart-delay -1 must not be negative");
  options = With({}, "a");
  options.hostfile = "f";
  refused(options, "--host and --hostfile exclude each other");
}

TEST(LaunchOptions, AcceptHostsWithAndWithoutSlots) {
  EXPECT_OK(Validate({}));
  EXPECT_OK(Validate(With(4, "")));
  EXPECT_OK(Validate(With({}, "a")));
  EXPECT_OK(Validate(With(3, "a:2,b")));
  EXPECT_OK(Validate(With(9, "a:2,b", true)));
}

}  // namespace
}  // namespace weft
