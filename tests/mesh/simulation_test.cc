#include "weft/mesh/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mesh/bootstrap_conformance.h"
#include "tests/mesh/wire_conformance.h"
#include "tests/support/thread_ranks.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::NodeMapsOf;
using ::weft::testing::StatusIs;

using Body = absl::Status (*)(Bootstrap&);
struct Promise {
  const char* name;
  Body body;
};
void PrintTo(const Promise& promise, std::ostream* out) { *out << promise.name; }

// Every promise of bootstraps and wires, under several seeds.
class Simulated : public ::testing::TestWithParam<Promise> {};

TEST_P(Simulated, KeepsTheSamePromisesAsRealRanks) {
  for (const int ranks : {1, 2, 5}) {
    for (const NodeMap& nodes : NodeMapsOf(ranks)) {
      for (const uint64_t seed : {1, 2}) {
        SCOPED_TRACE(absl::StrCat(testing::Describe(nodes), ", seed ", seed));
        EXPECT_OK(RunSimulatedRanks(nodes, {.seed = seed}, GetParam().body).status());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Promises, Simulated,
    ::testing::Values(Promise{"GathersBlobsInRankOrder", testing::GathersBlobsInRankOrder},
                      Promise{"AgreesOnTheLowestFailure", testing::AgreesOnTheLowestFailure},
                      Promise{"SharesMemoryWithinTheNode", testing::SharesMemoryWithinTheNode},
                      Promise{"RefusesMemoryThatIsNotThere", testing::RefusesMemoryThatIsNotThere},
                      Promise{"DeliversEveryMessage", testing::DeliversEveryMessage},
                      Promise{"MatchesInOrderPerPeerAndTag", testing::MatchesInOrderPerPeerAndTag},
                      Promise{"DeliversNotesInOrder", testing::DeliversNotesInOrder},
                      Promise{"KeepsLinksApart", testing::KeepsLinksApart},
                      Promise{"ForgetsCancelledReceives", testing::ForgetsCancelledReceives},
                      Promise{"FinishesCancelledReceivesThatArrive",
                              testing::FinishesCancelledReceivesThatArrive},
                      Promise{"ReportsLengthsThatDiffer", testing::ReportsLengthsThatDiffer},
                      Promise{"TakesMessagesUpToTheLengthThatTheReceiveAllows",
                              testing::TakesMessagesUpToTheLengthThatTheReceiveAllows},
                      Promise{"GoesWithReceivesUnmatched", testing::GoesWithReceivesUnmatched},
                      Promise{"RefusesBadArguments", testing::RefusesBadArguments}),
    [](const auto& promise) { return std::string(promise.param.name); });

absl::Status NapByTurns(Bootstrap& bootstrap) {
  for (int turn = 0; turn < 20; ++turn) {
    bootstrap.runtime().SleepFor(1000 * (bootstrap.rank() + 1));
    WEFT_RETURN_IF_ERROR(bootstrap.AllGatherBlob("", absl::Seconds(1)).status());
  }
  return absl::OkStatus();
}

TEST(Simulation, RepeatsItselfToTheNanosecond) {
  const SimReport first = RunSimulatedRanks(NodeMap::RanksPerNode(6, 2), {.seed = 5}, NapByTurns);
  const SimReport again = RunSimulatedRanks(NodeMap::RanksPerNode(6, 2), {.seed = 5}, NapByTurns);
  const SimReport other = RunSimulatedRanks(NodeMap::RanksPerNode(6, 2), {.seed = 6}, NapByTurns);
  EXPECT_EQ(first.fingerprint, again.fingerprint);
  EXPECT_EQ(first.virtual_ns, again.virtual_ns);
  EXPECT_NE(first.fingerprint, other.fingerprint);
}

TEST(Simulation, TakesNoRealTimeForVirtualTime) {
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(2), {}, [](Bootstrap& bootstrap) {
    bootstrap.runtime().SleepFor(int64_t{3600} * 1'000'000'000);
    return absl::OkStatus();
  });
  EXPECT_GE(report.virtual_ns, int64_t{3600} * 1'000'000'000);
  EXPECT_LT(report.events, 10);
}

TEST(Simulation, ASlowRankTakesLonger) {
  const auto nap = [](Bootstrap& bootstrap) {
    bootstrap.runtime().SleepFor(1'000'000);
    return bootstrap.runtime().NowNs() > 10'000'000 ? absl::OkStatus() : absl::UnknownError("fast");
  };
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(3), {.slow = {{1, 20.0}}}, nap);
  EXPECT_FALSE(report.outcomes[0].ok());
  EXPECT_OK(report.outcomes[1]);
  EXPECT_FALSE(report.outcomes[2].ok());
}

TEST(Simulation, ADeadRankIsMissedByTheOthers) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(3), {.death = {{2, 50'000}}}, [](Bootstrap& bootstrap) {
        bootstrap.runtime().SleepFor(200'000);
        return bootstrap.AllGatherBlob("here", absl::Seconds(1)).status();
      });
  EXPECT_THAT(report.outcomes[2], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("died at 50000 ns")));
  for (const int survivor : {0, 1}) {
    EXPECT_THAT(report.outcomes[survivor],
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 has not come")));
  }
}

TEST(Simulation, SaysWhereARankSleepsForEver) {
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(2), {}, [](Bootstrap& bootstrap) {
    std::unique_ptr<Runtime::Task> never;
    if (bootstrap.rank() == 1) {
      never = bootstrap.runtime().Start([&] { never.reset(); });  // Waits for its own end.
    }
    return absl::OkStatus();
  });
  EXPECT_OK(report.outcomes[0]);
  EXPECT_THAT(report.outcomes[1], StatusIs(absl::StatusCode::kInternal, HasSubstr("nothing can wake it")));
}

}  // namespace
}  // namespace weft
