#include "weft/mesh/mpi_bootstrap.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/mesh/mpi/mpi_library.h"
#include "tests/mesh/support/bootstrap_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/no_threads.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::weft::testing::kTestTimeout;
using ::weft::testing::NoThreads;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;
using ::weft::testing::WorldBootstrap;

class MpiBootstrapConformance : public ::testing::TestWithParam<weft::testing::ConformanceTest> {};

TEST_P(MpiBootstrapConformance, Holds) { EXPECT_OK(GetParam().body(WorldBootstrap())); }
INSTANTIATE_TEST_SUITE_P(AllTests, MpiBootstrapConformance,
                         ::testing::ValuesIn(weft::testing::BootstrapConformance()), weft::testing::NameOf);

TEST(MpiBootstrap, PutsTheRanksOfOneMachineOnOneNode) {
  EXPECT_EQ(WorldBootstrap().node_map().node_count(), 1);
  EXPECT_EQ(WorldBootstrap().node(), 0);
}

TEST(MpiBootstrap, ReservesAtMostTheFileThatItMayMake) {
  if (WorldBootstrap().size() == 1) GTEST_SKIP() << "the memory of one rank is in no file";
  EXPECT_OK(weft::testing::ReservesAtMostTheFilesThatItMayMake(WorldBootstrap(), 1));
}

TEST(MpiBootstrap, EveryRankLearnsTheNumaNodesOfAll) {
  MpiBootstrapOptions options;
  options.numa_node = 7 - WorldBootstrap().rank();
  ASSERT_OK_AND_ASSIGN(const auto bootstrap, MakeMpiBootstrap(options));
  std::vector<int> expected;
  for (int rank = 0; rank < bootstrap->size(); ++rank) expected.push_back(7 - rank);
  EXPECT_EQ(bootstrap->node_map().numa_of_rank, expected);
}

TEST(MpiBootstrap, TwoBootstrapsCanExistAtTheSameTime) {
  ASSERT_OK_AND_ASSIGN(const auto second, MakeMpiBootstrap());
  EXPECT_EQ(second->rank(), WorldBootstrap().rank());
  EXPECT_EQ(second->size(), WorldBootstrap().size());
  EXPECT_OK(weft::testing::GathersBlobsInRankOrder(*second));
}

TEST(MpiBootstrap, RefusesBlobsAboveTheMaximumAndKeepsWorking) {
  const char byte = 0;  // Not read, because the size is checked first.
  EXPECT_THAT(WorldBootstrap().AllGatherBlob({&byte, (size_t{1} << 30) + 1}, kTestTimeout),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the maximum is 1073741824")));
  EXPECT_OK(weft::testing::GathersBlobsInRankOrder(WorldBootstrap()));
}

TEST(MpiBootstrap, NamesTheLibraryThatCarriesMessages) {
  MpiBootstrapOptions options;
  options.transport = MpiTransport::kMpi;
  ASSERT_OK_AND_ASSIGN(const auto bootstrap, MakeMpiBootstrap(options));
  EXPECT_THAT(bootstrap->TransportName(), MatchesRegex("MPI \\([^)]+\\)"));
}

TEST(MpiBootstrap, TakesTheTransportFromTheEnvironment) {
  const std::vector<std::pair<const char*, MpiTransport>> transports = {{nullptr, MpiTransport::kAuto},
                                                                        {"auto", MpiTransport::kAuto},
                                                                        {"mpi", MpiTransport::kMpi},
                                                                        {"tcp", MpiTransport::kTcp}};
  for (const auto& [text, transport] : transports) {
    const ScopedVariable variable("WEFT_TRANSPORT", text);
    EXPECT_EQ(MpiBootstrapOptions::FromEnvironment().transport, transport);
  }
  const ScopedVariable variable("WEFT_TRANSPORT", "tcp");
  ASSERT_OK_AND_ASSIGN(const auto bootstrap, MakeMpiBootstrap());
  EXPECT_EQ(bootstrap->TransportName(), "TCP sockets");
  const ScopedVariable network("WEFT_NETWORK", "eth7");
  EXPECT_EQ(MpiBootstrapOptions::FromEnvironment().network, "eth7");
}

TEST(MpiBootstrap, AnInvalidTransportOfOneRankIsAnErrorOnEveryRank) {
  const int last = WorldBootstrap().size() - 1;
  const bool is_own = WorldBootstrap().rank() == last;
  const ScopedVariable variable("WEFT_TRANSPORT", is_own ? "ucx" : "tcp");
  EXPECT_THAT(MakeMpiBootstrap(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat(is_own ? "" : absl::StrCat("rank ", last, ": "),
                                              "WEFT_TRANSPORT is 'ucx': it must be auto, mpi or tcp"))));
}

TEST(MpiBootstrap, RefusesTransportsThatDiffer) {
  if (WorldBootstrap().size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  MpiBootstrapOptions options;
  if (WorldBootstrap().rank() == 1) options.transport = MpiTransport::kTcp;
  EXPECT_THAT(MakeMpiBootstrap(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the transport is auto on rank 0, but tcp on rank 1: set WEFT_TRANSPORT")));
}

TEST(MpiLibrary, IsNamedWithItsVersionAlone) {
  EXPECT_EQ(internal::NameOfLibraryVersion(
                "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4"),
            "Open MPI 4.1.4");
  EXPECT_EQ(internal::NameOfLibraryVersion("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7"),
            "MPICH 4.0.2");
  EXPECT_EQ(internal::NameOfLibraryVersion("Intel(R) MPI Library 2021.9 for Linux* OS\n"),
            "Intel(R) MPI Library 2021.9 for Linux* OS");
}

// As if a launcher had started these ranks, and one more that MPI does not connect.
TEST(MpiBootstrap, RefusesProcessesThatAreNotConnected) {
  struct Row {
    const char* rank;
    const char* size;
    const char* remedy;
  };
  const Row rows[] = {
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "use srun --mpi=pmix"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "use the mpiexec of that library"},
      {"PMI_RANK", "PMI_SIZE", "use its mpirun"},
  };
  const int size = WorldBootstrap().size();
  for (const Row& row : rows) {
    SCOPED_TRACE(row.rank);
    const ScopedVariable no_open_mpi("OMPI_COMM_WORLD_RANK", nullptr);
    const ScopedVariable no_pmix("PMIX_RANK", nullptr);
    const ScopedVariable no_hydra("PMI_RANK", nullptr);
    const ScopedVariable rank(row.rank, "0");
    {
      const ScopedVariable more(row.size, absl::StrCat(size + 1).c_str());
      EXPECT_THAT(MakeMpiBootstrap(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.remedy)));
    }
    const ScopedVariable all(row.size, absl::StrCat(size).c_str());
    EXPECT_OK(MakeMpiBootstrap());
  }
}

TEST(MpiBootstrap, AnInvalidVariableOfOneRankIsAnErrorOnEveryRank) {
  const int last = WorldBootstrap().size() - 1;
  const bool is_own = WorldBootstrap().rank() == last;
  const ScopedVariable variable("WEFT_TIMEOUT_S", is_own ? "soon" : nullptr);
  EXPECT_THAT(
      MakeMpiBootstrap(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr(is_own ? "WEFT_TIMEOUT_S" : absl::StrCat("rank ", last, ": WEFT_TIMEOUT_S"))));
}

TEST(MpiBootstrap, NamesTheLateRankAndKeepsWorking) {
  Bootstrap& world = WorldBootstrap();
  ASSERT_OK_AND_ASSIGN(const auto other, MakeMpiBootstrap());
  const int late = world.size() - 1;
  const bool alone = world.size() == 1;
  // The late rank joins the first round only after the round has timed out on the other ranks.
  if (world.rank() != late) {
    EXPECT_THAT(
        other->AllGatherBlob("early", absl::Milliseconds(1)),
        StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(absl::StrCat(late, " did not arrive"))));
  }
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), kTestTimeout));
  if (world.rank() == late) {
    ASSERT_OK_AND_ASSIGN(const auto blobs, other->AllGatherBlob("late", kTestTimeout));
    EXPECT_EQ(blobs[0], alone ? "late" : "early");
  }
  // Only now do the other ranks call `other` again. See Note [Relays of abandoned rounds].
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), kTestTimeout));
  ASSERT_OK_AND_ASSIGN(const auto next, other->AllGatherBlob("next", kTestTimeout));
  EXPECT_THAT(next, ::testing::Each("next"));
}

// See Note [Relays of abandoned rounds].
TEST(MpiBootstrap, RelaysMissedRoundsOnceTheSystemHasAThread) {
  Bootstrap& world = WorldBootstrap();
  ASSERT_OK_AND_ASSIGN(const auto other, MakeMpiBootstrap());
  const int late = world.size() - 1;
  const bool is_late = world.rank() == late;
  const auto missed = [&] { return other->AllGatherBlob("missed", absl::Milliseconds(1)); };
  const std::string missing = absl::StrCat(late, " did not arrive");
  if (!is_late) {
    {
      const NoThreads none;
      EXPECT_THAT(missed(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr(missing), HasSubstr("cannot start a thread"))));
    }
    EXPECT_THAT(missed(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   AllOf(HasSubstr(missing), Not(HasSubstr("cannot start a thread")))));
  }
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), kTestTimeout));
  for (int round = 0; round < 2 && is_late; ++round) {
    ASSERT_OK_AND_ASSIGN(const auto blobs, other->AllGatherBlob("late", kTestTimeout));
    EXPECT_EQ(blobs[0], late == 0 ? "late" : "missed");
  }
  ASSERT_OK(AgreeOnStatus(world, absl::OkStatus(), kTestTimeout));
  EXPECT_OK(other->AllGatherBlob("next", kTestTimeout));
}

TEST(MpiBootstrap, ARankWithoutAThreadForItsDeadlinesIsAnErrorOnEveryRank) {
  const int last = WorldBootstrap().size() - 1;
  const bool is_own = WorldBootstrap().rank() == last;
  std::optional<NoThreads> none;
  if (is_own) none.emplace();
  EXPECT_THAT(MakeMpiBootstrap(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat(is_own ? "" : absl::StrCat("rank ", last, ": "),
                                              "cannot start a thread for the deadlines of MPI"))));
}

}  // namespace
}  // namespace weft
