// Work::Then: callbacks on completion.
#include <atomic>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// Outlives the Work and the engine.
struct Outcome {
  std::atomic<int> calls{0};
  absl::Status status;
};

std::function<void(const absl::Status&)> Count(Outcome& outcome) {
  return [&outcome](const absl::Status& status) {
    outcome.status = status;
    outcome.calls.fetch_add(1);
  };
}

// Yields until `done` or the deadline: no thread waits in the engine.
template <typename Done>
bool YieldUntil(Runtime& runtime, const Done& done) {
  const Deadline deadline(runtime, kTestTimeout);
  while (!done() && !deadline.HasPassed()) runtime.Yield();
  return done();
}

TEST(Callbacks, AreCalledWithoutAWaitingThread) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    for (int i = 0; i < 50; ++i) {
      Outcome outcome;
      Work work = fixture.engine->Barrier(fixture.lane);
      work.Then(Count(outcome));
      EXPECT_TRUE(YieldUntil(bootstrap.runtime(), [&] { return outcome.calls == 1; })) << "barrier " << i;
      EXPECT_TRUE(work.Test());
      EXPECT_OK(outcome.status);
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
      EXPECT_EQ(outcome.calls, 1);
    }
    return absl::OkStatus();
  });
}

TEST(Callbacks, OfAWorkThatIsCompleteAreCalledAtOnce) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    Work work = fixture.engine->Barrier(fixture.lane);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    Outcome outcome;
    work.Then(Count(outcome));
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_OK(outcome.status);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    Work invalid = fixture.engine->Broadcast(fixture.lane, nullptr, DType::kF32, 1, /*root=*/9);
    Outcome failed;
    invalid.Then(Count(failed));
    EXPECT_EQ(failed.calls, 1);
    EXPECT_THAT(failed.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root 9")));
    return absl::OkStatus();
  });
}

TEST(Callbacks, GetTheErrorOfAFailedOperation) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    Outcome outcome;
    if (bootstrap.rank() == 0) {
      Work work = fixture.engine->Barrier(fixture.lane);
      work.Then(Count(outcome));
      EXPECT_TRUE(YieldUntil(bootstrap.runtime(), [&] { return outcome.calls == 1; }));
      EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1: given up")));
    } else {
      fixture.engine->Abort(absl::AbortedError("given up"));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    EXPECT_EQ(outcome.calls, bootstrap.rank() == 0 ? 1 : 0);
    return CheckEngineWorks(fixture);
  });
}

// Rank 1 submits nothing: the operation of rank 0 fails.
TEST(Callbacks, AreCalledBeforeTheEngineIsDestroyed) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    Outcome outcome;
    {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
      if (bootstrap.rank() == 0) {
        Work work = fixture.engine->Barrier(fixture.lane);
        work.Then(Count(outcome));
        work.Detach({});
        fixture.engine->Abort(absl::CancelledError("stopped"));
      }
    }
    EXPECT_EQ(outcome.calls, bootstrap.rank() == 0 ? 1 : 0);
    return absl::OkStatus();
  });
}

// A callback submits the next operation of its own lane.
TEST(Callbacks, MaySubmitOperations) {
  constexpr int kLinks = 30;
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    std::atomic<int> links{0};
    std::function<void(const absl::Status&)> next = [&](const absl::Status& status) {
      EXPECT_OK(status);
      if (links.fetch_add(1) + 1 >= kLinks) return;
      Work work = fixture.engine->Barrier(fixture.lane);
      work.Then(next);
      work.Detach({});
    };
    next(absl::OkStatus());
    EXPECT_TRUE(YieldUntil(bootstrap.runtime(), [&] { return links == kLinks; }));
    return BootstrapBarrier(bootstrap);
  });
}

// Callbacks of one Work keep their order, and a submission calls none: the submitting thread may hold a lock
// that a callback takes.
TEST(Callbacks, AreNeverCalledBySubmissions) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    std::atomic<bool> submitting{false};
    const std::thread::id submitter = std::this_thread::get_id();
    std::atomic<int> calls{0};
    std::vector<Work> works;
    for (int i = 0; i < 300; ++i) {
      submitting = true;
      works.push_back(fixture.engine->Barrier(fixture.lane));
      submitting = false;
      auto first = std::make_shared<bool>(false);
      const auto check = [&, first](bool is_first) {
        EXPECT_FALSE(std::this_thread::get_id() == submitter && submitting);
        EXPECT_EQ(*first, !is_first);
        *first = true;
        calls.fetch_add(1);
      };
      works.back().Then([check](const absl::Status& /*status*/) { check(true); });
      works.back().Then([check](const absl::Status& /*status*/) { check(false); });
    }
    for (Work& work : works) WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_TRUE(YieldUntil(bootstrap.runtime(), [&] { return calls == 600; }));
    return absl::OkStatus();
  });
}

// The submitting thread may hold a lock that a destructor of detached memory takes. A submission of a barrier
// lets no other fiber run.
TEST(Callbacks, AndDestructorsOfDetachedMemoryAreNeverCalledBySubmissions) {
  for (const NodeMap& nodes : NodeMapsOf(2)) {
    const SimReport report = RunSimulatedRanks(nodes, SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
      constexpr int kOperations = 100;
      bool submitting = false;
      int destroyed = 0;
      for (int i = 0; i < kOperations; ++i) {
        submitting = true;
        Work work = fixture.engine->Barrier(fixture.lane);
        submitting = false;
        work.Detach({std::shared_ptr<void>(nullptr, [&](void* /*memory*/) {
          EXPECT_FALSE(submitting);
          ++destroyed;
        })});
        bootstrap.runtime().SleepFor(1000 * i);  // So some barriers end in the next submission.
      }
      bootstrap.runtime().SleepFor(10'000'000);
      EXPECT_EQ(destroyed, kOperations);
      return BootstrapBarrier(bootstrap);
    });
    EXPECT_OK(report.status()) << Describe(nodes);
  }
}

TEST(Callbacks, AreCalledOnceInEverySchedule) {
  for (uint64_t seed = 0; seed < ScheduleCount(60); ++seed) {
    const NodeMap nodes = NodeMap::RanksPerNode(4, 1 + static_cast<int>(seed % 4));
    SimOptions machine;
    machine.seed = seed;
    const SimReport report = RunSimulatedRanks(nodes, machine, [&](Bootstrap& bootstrap) -> absl::Status {
      constexpr size_t kOperations = 40;
      std::vector<Outcome> outcomes(kOperations);
      const bool leaves = seed % 2 == 1 && bootstrap.rank() == 1;
      {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
        for (size_t i = 0; i < (leaves ? kOperations / 2 : kOperations); ++i) {
          Work work = fixture.engine->Barrier(fixture.lane);
          work.Then(Count(outcomes[i]));
          if (i % 7 == 0) {
            const absl::Status waited = work.Wait();
            if (seed % 2 == 0) {
              EXPECT_OK(waited);  // No rank leaves.
            }
          }
          work.Detach({});
        }
      }
      for (size_t i = 0; i < kOperations; ++i) {
        EXPECT_EQ(outcomes[i].calls, leaves && i >= kOperations / 2 ? 0 : 1) << "operation " << i;
        if (seed % 2 == 0) {
          EXPECT_OK(outcomes[i].status);  // No rank leaves.
        }
      }
      return absl::OkStatus();
    });
    EXPECT_OK(report.status()) << Describe(nodes) << ", seed " << seed;
  }
}

}  // namespace
}  // namespace weft::testing
