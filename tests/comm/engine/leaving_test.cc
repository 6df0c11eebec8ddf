// A rank that destroys its engine early tells its peers. Operations that still need it fail at once.
#include <latch>
#include <stdexcept>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

OpOptions Labeled(const char* label) {
  OpOptions options;
  options.label = label;
  return options;
}

auto RankZeroHasLeft(const char* label) {
  return StatusIs(
      absl::StatusCode::kAborted,
      AllOf(HasSubstr("rank 0 destroyed its engine before it submitted barrier"), HasSubstr(label)));
}

EngineOptions LongTimeout() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  return options;
}

// Rank 0 returns between the submission of an operation and its wait, as after an error of its own.
TEST(Leaving, FailsTheNextOperationOfPeersAtOnce) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, LongTimeout()));
    Work first = fixture.engine->Barrier(fixture.lane, Labeled("first"));
    if (bootstrap.rank() == 0) return absl::OkStatus();
    // The failure of a peer that is faster may end it.
    if (const absl::Status waited = first.Wait(); !waited.ok()) {
      EXPECT_THAT(waited, RankZeroHasLeft("'second'"));
      return absl::OkStatus();
    }
    Work second = fixture.engine->Barrier(fixture.lane, Labeled("second"));
    EXPECT_THAT(second.Wait(), RankZeroHasLeft("'second'"));
    return absl::OkStatus();
  });
}

// The peers of rank 0 would submit its operation after another one, for which they wait in vain.
TEST(Leaving, EndsTheDrainOfAnEngineWhoseOperationPeersNeverSubmit) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, LongTimeout()));
    WEFT_ASSIGN_OR_RETURN(const LaneId other,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
    if (bootstrap.rank() == 0) {
      Work unmatched = fixture.engine->Barrier(other);
      unmatched.Detach({});
      return absl::OkStatus();
    }
    Work first = fixture.engine->Barrier(fixture.lane, Labeled("first"));
    EXPECT_THAT(first.Wait(), RankZeroHasLeft("'first'"));
    return absl::OkStatus();
  });
}

TEST(Leaving, DoesNotDisturbOperationsThatPeersSubmitLater) {
  for (const NodeMap& nodes : NodeMapsOf(3)) {
    std::latch leaving(1);
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      constexpr int64_t kCount = 5000;
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, LongTimeout()));
      WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
      std::vector<Work> works;
      const auto submit = [&] {
        for (int i = 0; i < 12; ++i) {  // More than the descriptor ring holds.
          works.push_back(
              fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kI32, kCount, /*root=*/0));
        }
      };
      if (bootstrap.rank() == 0) {
        buffer.Write(0, std::vector<double>(kCount, 7));
        submit();
        for (Work& work : works) work.Detach({});
        leaving.count_down();
        fixture.engine.reset();
        return absl::OkStatus();
      }
      leaving.wait();
      submit();
      for (Work& work : works) WEFT_RETURN_IF_ERROR(work.WaitReleased());
      EXPECT_EQ(buffer.Read(0, kCount), std::vector<double>(kCount, 7));
      return fixture.engine->status();
    });
  }
}

// The peers wait for an operation that rank 0 would have submitted next, and submit the first one afterwards.
TEST(Leaving, AnExceptionAbortsTheEngineInsteadOfWaitingForAWork) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, LongTimeout()));
    WEFT_ASSIGN_OR_RETURN(const LaneId other,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
    if (bootstrap.rank() == 0) {
      EXPECT_THROW(
          {
            const Work work = fixture.engine->Barrier(other, Labeled("dropped"));
            throw std::runtime_error("the batch cannot be read");
          },
          std::runtime_error);
      return absl::OkStatus();
    }
    Work next = fixture.engine->Barrier(fixture.lane);
    EXPECT_THAT(next.Wait(), StatusIs(absl::StatusCode::kAborted,
                                      HasSubstr("rank 0: an exception destroyed barrier 'dropped'")));
    return absl::OkStatus();
  });
}

// A callback may submit while the engine's destructor waits for the operation before. Peers must not take the
// descriptor that announces the leaving for that of the new operation.
TEST(Leaving, RefusesOperationsThatACallbackSubmitsAfterwards) {
  constexpr int64_t kUntilRankZeroHasActed = 1'000'000;  // Virtual time.
  for (uint64_t seed = 0; seed < ScheduleCount(10); ++seed) {
    SimOptions machine;
    machine.seed = seed;
    const SimReport report =
        RunSimulatedRanks(NodeMap::OneNode(2), machine, [](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                                EngineFixture::Make(bootstrap, {}, /*segment_bytes=*/size_t{4} << 20));
          WEFT_ASSIGN_OR_RETURN(TestBuffer sum, TestBuffer::Make(*fixture.pool, true, DType::kI32, 1));
          sum.Write(0, {1});
          CommEngine& engine = *fixture.engine;
          const auto submit = [&](const char* label) {
            return engine.AllReduce(fixture.lane, sum.data(), sum.data(), DType::kI32, 1, ReduceOp::kSum,
                                    Labeled(label));
          };
          if (bootstrap.rank() == 0) {
            Work first = submit("first");
            int callbacks = 0;
            first.Then([&](const absl::Status& status) {
              EXPECT_OK(status);
              Work second = submit("second");
              second.Then([&](const absl::Status& refused) {
                EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAborted,
                                              AllOf(HasSubstr("'second'"), HasSubstr("is being destroyed"))));
                ++callbacks;
              });
              second.Detach({});
              ++callbacks;
            });
            first.Detach({});
            fixture.engine.reset();
            EXPECT_EQ(callbacks, 2);
            EXPECT_EQ(sum.Read(0, 1).front(), 2);
            return absl::OkStatus();
          }
          bootstrap.runtime().SleepFor(kUntilRankZeroHasActed);  // It has left.
          Work first = submit("first");
          WEFT_RETURN_IF_ERROR(first.Wait());
          bootstrap.runtime().SleepFor(kUntilRankZeroHasActed);  // Its callback has submitted.
          Work second = submit("second");
          EXPECT_THAT(second.Wait(), StatusIs(absl::StatusCode::kAborted,
                                              HasSubstr("rank 0 destroyed its engine before it submitted")));
          EXPECT_EQ(sum.Read(0, 1).front(), 2);
          return absl::OkStatus();
        });
    EXPECT_OK(report.status()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::testing
