// Failures of an engine, and its reset, on simulated ranks.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

// Virtual time: the engine's timeout is ten minutes.
TEST(SimulatedFailures, OfARankThatLeavesReachPeersInEverySchedule) {
  for (const NodeMap& nodes :
       {NodeMap::RanksPerNode(6, 2), NodeMap::RanksPerNode(5, 1), NodeMap::OneNode(4)}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      SimOptions machine;
      machine.seed = seed;
      const SimReport report = RunSimulatedRanks(nodes, machine, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, {}, /*segment_bytes=*/size_t{4} << 20));
        for (int i = 0; i < 20; ++i) {
          Work work = fixture.engine->Barrier(fixture.lane);
          if (bootstrap.rank() == 0 && i == 10) return absl::OkStatus();
          const absl::Status waited = work.Wait();
          if (waited.ok()) continue;
          EXPECT_GE(i, 10);  // The failure of a peer that is faster may end the last one, too.
          EXPECT_THAT(waited, StatusIs(absl::StatusCode::kAborted,
                                       HasSubstr("rank 0 destroyed its engine before it submitted barrier")));
          return absl::OkStatus();
        }
        return absl::InternalError("20 barriers passed without rank 0");
      });
      EXPECT_OK(report.status()) << Describe(nodes) << ", seed " << seed;
      EXPECT_LT(report.virtual_ns, int64_t{1'000'000'000}) << Describe(nodes) << ", seed " << seed;
    }
  }
}

// Nodes 0 and 3 of nine are no neighbors among all nodes, and the ranks of the others take no part any more.
TEST(SimulatedFailures, ReachTheRanksOfAGroupAfterAllOthersHaveLeft) {
  const auto body = [](Bootstrap& bootstrap) -> absl::Status {
    const int rank = bootstrap.rank();
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                          EngineFixture::Make(bootstrap, {}, /*segment_bytes=*/size_t{4} << 20));
    const bool is_in_pair = rank == 0 || rank == 3;
    const ProcessGroup group =
        is_in_pair ? ProcessGroup{"pair", {0, 3}, rank == 0 ? 0 : 1} : ProcessGroup{"alone", {rank}, 0};
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, fixture.engine->AddLane(group, LanePurpose::kControl));
    if (!is_in_pair) return absl::OkStatus();
    if (rank == 0) {
      bootstrap.runtime().SleepFor(int64_t{1'000'000'000});
      fixture.engine->Abort(absl::DataLossError("an unreadable file"));
      return absl::OkStatus();
    }
    Work work = fixture.engine->Barrier(lane);
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 0: an unreadable file")));
    return absl::OkStatus();
  };
  EXPECT_OK(RunSimulatedRanks(NodeMap::RanksPerNode(9, 1), {}, body).status());
}

TEST(SimulatedFailures, EndAWaitOnceAtTheEnginesTimeout) {
  SimOptions machine;
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), machine, [](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.timeout = absl::Seconds(100);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, options, /*segment_bytes=*/size_t{4} << 20));
        if (bootstrap.rank() == 1) {
          bootstrap.runtime().SleepFor(int64_t{150'000'000'000});
          return absl::OkStatus();
        }
        {
          Work work = fixture.engine->Barrier(fixture.lane);
          EXPECT_TRUE(absl::IsDeadlineExceeded(work.Wait()));
        }
        EXPECT_THAT(fixture.engine->status(),
                    StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waits for rank(s) 1")));
        EXPECT_LT(bootstrap.runtime().NowNs(), int64_t{110'000'000'000});
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

TEST(SimulatedFailures, AreNotWaitedForAgainWhenTheEngineIsDestroyed) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.timeout = absl::Seconds(100);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, options, /*segment_bytes=*/size_t{4} << 20));
        if (bootstrap.rank() == 1) {
          bootstrap.runtime().SleepFor(int64_t{150'000'000'000});
          return absl::OkStatus();
        }
        Work work = fixture.engine->Barrier(fixture.lane);
        EXPECT_TRUE(absl::IsDeadlineExceeded(work.Wait()));
        work.Detach({});
        fixture.engine.reset();
        EXPECT_LT(bootstrap.runtime().NowNs(), int64_t{110'000'000'000});
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

// Deadlines of 0.2 s of virtual time fall into every phase of the attempts of the other ranks.
TEST(SimulatedFailures, EndWithAResetOnAllRanksHoweverLateOneRankIs) {
  constexpr int64_t kTimeoutNs = 200'000'000;
  uint64_t seed = 0;
  for (const NodeMap& nodes :
       {NodeMap::OneNode(3), NodeMap::RanksPerNode(4, 2), NodeMap::RanksPerNode(3, 1)}) {
    for (int64_t late_ns = 0; late_ns < 4 * kTimeoutNs; late_ns += kTimeoutNs / 10) {
      SimOptions machine;
      machine.seed = ++seed;
      const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.slice_bytes = 256;
        options.lane_window_bytes = 1024;
        options.timeout = absl::Nanoseconds(kTimeoutNs);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, options, /*segment_bytes=*/size_t{4} << 20));
        WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));  // A reset would fail a peer that still checks.
        if (bootstrap.rank() == 1) bootstrap.runtime().SleepFor(late_ns);
        return ResetUntilItWorks(fixture, bootstrap.runtime(), absl::Seconds(100));
      });
      EXPECT_OK(report.status()) << Describe(nodes) << ", rank 1 is " << late_ns << " ns late";
    }
  }
}

TEST(SimulatedFailures, OfAMissedDeadlineEndWithAReset) {
  for (const NodeMap& nodes :
       {NodeMap::OneNode(4), NodeMap::RanksPerNode(4, 2), NodeMap::RanksPerNode(4, 1)}) {
    for (const bool late_rank_submits : {false, true}) {
      SimOptions machine;
      machine.jitter = 0;
      const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.timeout = absl::Seconds(1);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
        Work work;
        const bool is_late = bootstrap.rank() == 3;
        if (is_late) bootstrap.runtime().SleepFor(int64_t{1'300'000'000});
        if (!is_late || late_rank_submits) {
          work = fixture.engine->Barrier(fixture.lane);
          EXPECT_THAT(work.Wait(), Not(IsOk()));
        }
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
        EXPECT_OK(fixture.engine->status());
        return CheckEngineWorks(fixture);
      });
      EXPECT_OK(report.status()) << Describe(nodes) << ", the late rank submits: " << late_rank_submits;
    }
  }
}

TEST(SimulatedFailures, OfAWaitWithChecksNameTheLateRank) {
  for (const NodeMap& nodes : {NodeMap::RanksPerNode(4, 2), NodeMap::RanksPerNode(4, 1)}) {
    SimOptions machine;
    const SimReport report = RunSimulatedRanks(nodes, machine, [](Bootstrap& bootstrap) -> absl::Status {
      EngineOptions options;
      options.timeout = absl::Seconds(1);
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                            EngineFixture::Make(bootstrap, options, /*segment_bytes=*/size_t{4} << 20));
      const bool is_late = bootstrap.rank() == 3;
      if (is_late) bootstrap.runtime().SleepFor(int64_t{10'000'000'000});
      Work work = fixture.engine->Barrier(fixture.lane);
      if (!is_late) {
        int checks = 0;
        const auto check = [&checks] {
          ++checks;
          return absl::OkStatus();
        };
        EXPECT_THAT(work.Wait(check),
                    StatusIs(absl::StatusCode::kDeadlineExceeded,
                             HasSubstr("; rank(s) 3 have not submitted what others wait for; waits for")));
        EXPECT_THAT(checks, AllOf(Ge(10), Le(20)));
      }
      return work.Wait(absl::Seconds(100));
    });
    EXPECT_OK(report.status()) << Describe(nodes);
  }
}

TEST(SimulatedFailures, OfACheckEndTheWaitAndNotTheOperation) {
  SimOptions machine;
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), machine, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, {}, /*segment_bytes=*/size_t{4} << 20));
        Work work;
        if (bootstrap.rank() == 0) {
          work = fixture.engine->Barrier(fixture.lane);
          int checks = 0;
          const auto check = [&checks] {
            return ++checks < 3 ? absl::OkStatus() : absl::CancelledError("interrupted");
          };
          EXPECT_THAT(work.WaitReleased(check), StatusIs(absl::StatusCode::kCancelled, "interrupted"));
          EXPECT_EQ(checks, 3);
        }
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        if (bootstrap.rank() == 1) work = fixture.engine->Barrier(fixture.lane);
        return work.WaitReleased();
      });
  EXPECT_OK(report.status());
}

}  // namespace
}  // namespace weft::testing
