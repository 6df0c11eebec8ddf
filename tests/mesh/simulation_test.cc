#include "weft/mesh/simulation.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/support/bootstrap_conformance.h"
#include "tests/mesh/support/link_conformance.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::NodeMapsOf;
using ::weft::testing::StatusIs;

// Runs every conformance test of Bootstrap and WireLink with several seeds.
class SimulatedConformance : public ::testing::TestWithParam<testing::ConformanceTest> {};

TEST_P(SimulatedConformance, HoldsForEveryNodeMapAndSeed) {
  for (const int ranks : {1, 2, 5}) {
    for (const NodeMap& nodes : NodeMapsOf(ranks)) {
      for (const uint64_t seed : {1, 2}) {
        SCOPED_TRACE(absl::StrCat(testing::Describe(nodes), ", seed ", seed));
        EXPECT_OK(RunSimulatedRanks(nodes, {.seed = seed}, GetParam().body).status());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bootstrap, SimulatedConformance,
                         ::testing::ValuesIn(testing::BootstrapConformance()), testing::NameOf);
INSTANTIATE_TEST_SUITE_P(Wire, SimulatedConformance, ::testing::ValuesIn(testing::LinkConformance()),
                         testing::NameOf);

TEST(SimulatedDeadline, KeepsLaterReservationsShared) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_OK(
        RunSimulatedRanks(NodeMap::OneNode(ranks), {}, testing::SharesMemoryAfterARankHasMissedADeadline)
            .status());
  }
}

absl::Status SleepAndGather(Bootstrap& bootstrap) {
  for (int round = 0; round < 20; ++round) {
    bootstrap.runtime().SleepFor(1000 * (bootstrap.rank() + 1));
    WEFT_RETURN_IF_ERROR(bootstrap.AllGatherBlob("", absl::Seconds(1)).status());
  }
  return absl::OkStatus();
}

TEST(Simulation, RepeatsExactlyForTheSameSeed) {
  const SimReport first = RunSimulatedRanks(NodeMap::RanksPerNode(6, 2), {.seed = 5}, SleepAndGather);
  const SimReport again = RunSimulatedRanks(NodeMap::RanksPerNode(6, 2), {.seed = 5}, SleepAndGather);
  const SimReport other = RunSimulatedRanks(NodeMap::RanksPerNode(6, 2), {.seed = 6}, SleepAndGather);
  EXPECT_EQ(first.fingerprint, again.fingerprint);
  EXPECT_EQ(first.virtual_ns, again.virtual_ns);
  EXPECT_NE(first.fingerprint, other.fingerprint);
}

TEST(Simulation, NeedsFewEventsForALongVirtualSleep) {
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(2), {}, [](Bootstrap& bootstrap) {
    bootstrap.runtime().SleepFor(int64_t{3600} * 1'000'000'000);
    return absl::OkStatus();
  });
  EXPECT_GE(report.virtual_ns, int64_t{3600} * 1'000'000'000);
  EXPECT_LT(report.events, 10);
}

TEST(Simulation, ASlowRankTakesLonger) {
  const auto sleep_one_ms = [](Bootstrap& bootstrap) {
    bootstrap.runtime().SleepFor(1'000'000);
    return bootstrap.runtime().NowNs() > 10'000'000 ? absl::OkStatus() : absl::UnknownError("fast");
  };
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(3), {.slow = {{1, 20.0}}}, sleep_one_ms);
  EXPECT_FALSE(report.outcomes[0].ok());
  EXPECT_OK(report.outcomes[1]);
  EXPECT_FALSE(report.outcomes[2].ok());
}

TEST(Simulation, SurvivorsGetADeadlineErrorThatNamesTheDeadRank) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(3), {.death = {{2, 50'000}}}, [](Bootstrap& bootstrap) {
        bootstrap.runtime().SleepFor(200'000);
        return bootstrap.AllGatherBlob("here", absl::Seconds(1)).status();
      });
  EXPECT_THAT(report.outcomes[2], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died at 50000 ns")));
  for (const int survivor : {0, 1}) {
    EXPECT_THAT(report.outcomes[survivor],
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 did not arrive")));
  }
}

// The poison that AddressSanitizer puts around the variables of a stack must not outlive the stack.
TEST(Simulation, LeavesMemoryUsableWhereStacksWere) {
  ASSERT_OK(RunSimulatedRanks(NodeMap::OneNode(4), {}, SleepAndGather).status());
  std::array<void*, 8> maps{};
  for (void*& map : maps) {
    map = mmap(nullptr, SimOptions::kFiberStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0);
    ASSERT_NE(map, MAP_FAILED);
    std::memset(map, 1, SimOptions::kFiberStackBytes);
  }
  for (void* map : maps) munmap(map, SimOptions::kFiberStackBytes);
}

// The outcome of a message from rank 0 to rank 1, of which one has destroyed its link during the transfer.
struct HalfClosedTransfer {
  bool done = false;     // At the end that kept its link.
  bool arrived = false;  // All bytes are in the buffer of the receive.
};

HalfClosedTransfer CloseDuringTransfer(int closing_rank, uint64_t seed) {
  constexpr size_t kBytes = 1'000'000;
  const SimOptions options{.seed = seed, .wire_speed = 1.0};  // A transfer takes a virtual millisecond.
  std::vector<char> sent(kBytes, 's');
  std::vector<char> received(kBytes, '-');
  HalfClosedTransfer result;
  EXPECT_OK(
      RunSimulatedRanks(NodeMap::RanksPerNode(2, 1), options, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(auto link, bootstrap.OpenLink(absl::Seconds(1)));
        WEFT_ASSIGN_OR_RETURN(const auto request,
                              bootstrap.rank() == 0
                                  ? link->Send(1, 1, sent.data(), kBytes)
                                  : link->Receive(0, 1, received.data(), kBytes, WireLink::Length::kExact));
        if (bootstrap.rank() == closing_rank) {
          bootstrap.runtime().SleepFor(500'000);
          link.reset();
          if (closing_rank == 0) std::fill(sent.begin(), sent.end(), 'x');
          return absl::OkStatus();
        }
        bootstrap.runtime().SleepFor(100'000'000);
        WEFT_RETURN_IF_ERROR(link->Poll());
        WEFT_ASSIGN_OR_RETURN(result.done, link->Test(request));
        return absl::OkStatus();
      }).status());
  const auto copied = std::count(received.begin(), received.end(), 's');
  EXPECT_EQ(copied + std::count(received.begin(), received.end(), '-'), kBytes);
  result.arrived = copied == kBytes;
  return result;
}

// The bytes are copied at a random moment of the transfer: before or after the link is destroyed.
TEST(SimulatedLink, CompletesNoMessageThatWasLost) {
  for (const int closing_rank : {0, 1}) {
    int arrived = 0;
    constexpr int kSeeds = 20;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(absl::StrCat("rank ", closing_rank, " closes, seed ", seed));
      const HalfClosedTransfer transfer = CloseDuringTransfer(closing_rank, seed);
      EXPECT_EQ(transfer.done, transfer.arrived);
      arrived += transfer.arrived ? 1 : 0;
    }
    EXPECT_GT(arrived, 0);
    EXPECT_LT(arrived, kSeeds);
  }
}

TEST(Simulation, ReportsADeadlockedRank) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), {}, [](Bootstrap& bootstrap) -> absl::Status {
        std::unique_ptr<Runtime::Task> never;
        if (bootstrap.rank() == 1) {
          // The task waits for its own end.
          WEFT_ASSIGN_OR_RETURN(never, bootstrap.runtime().Start("a test", [&] { never.reset(); }));
        }
        return absl::OkStatus();
      });
  EXPECT_OK(report.outcomes[0]);
  EXPECT_THAT(report.outcomes[1],
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no event is left that could wake it")));
}

TEST(Simulation, ReportsTheCauseRatherThanWhatFollowsFromIt) {
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(3), {}, [](Bootstrap& bootstrap) {
    return bootstrap.rank() < 2 ? absl::AbortedError("see the error of that rank")
                                : absl::DataLossError("the cause");
  });
  EXPECT_THAT(report.status(), StatusIs(absl::StatusCode::kDataLoss, "rank 2: the cause"));
}

TEST(SimulatedCores, AreSharedByTheRanksOfANode) {
  std::array<int64_t, 3> ends = {};
  const SimOptions machine{.jitter = 0, .wake_ns = 0, .cores = 1};
  ASSERT_OK(RunSimulatedRanks(NodeMap{{0, 0, 1}}, machine, [&](Bootstrap& bootstrap) {
              // Ranks 0 and 1 share a core until rank 0 ends; rank 2 has one for itself.
              bootstrap.runtime().simulation()->Compute(bootstrap.rank(), bootstrap.rank() == 0 ? 1000 : 5000,
                                                        1);
              ends[static_cast<size_t>(bootstrap.rank())] = bootstrap.runtime().NowNs();
              return absl::OkStatus();
            }).status());
  EXPECT_EQ(ends, (std::array<int64_t, 3>{2000, 6000, 5000}));
}

TEST(DeadlineOfARuntime, IsLeftForAsLongAsItsClockHasNotMovedByTheTimeout) {
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(1), {}, [](Bootstrap& bootstrap) {
    Runtime& runtime = bootstrap.runtime();
    constexpr int64_t kTimeoutNs = 1'000'000;
    const int64_t begin_ns = runtime.NowNs();
    const Deadline deadline(runtime, absl::Nanoseconds(kTimeoutNs));
    while (runtime.NowNs() < begin_ns + kTimeoutNs) {
      EXPECT_EQ(deadline.Left(), absl::Nanoseconds(begin_ns + kTimeoutNs - runtime.NowNs()));
      EXPECT_FALSE(deadline.HasPassed());
      runtime.SleepFor(10'000);
    }
    EXPECT_EQ(deadline.Left(), absl::ZeroDuration());
    EXPECT_TRUE(deadline.HasPassed());
    return absl::OkStatus();
  });
  EXPECT_OK(report.status());
}

TEST(DeadlineOfARuntime, ClampsTimeoutsThatItsClockCannotAdd) {
  const SystemRuntime runtime;
  EXPECT_TRUE(Deadline(runtime, -absl::InfiniteDuration()).HasPassed());
  EXPECT_TRUE(Deadline(runtime, absl::ZeroDuration()).HasPassed());
  EXPECT_GT(Deadline(runtime, absl::InfiniteDuration()).Left(), absl::Hours(24 * 364));
}

}  // namespace
}  // namespace weft
