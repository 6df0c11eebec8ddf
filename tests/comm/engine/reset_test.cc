// Abort fails the engine on all ranks, and a reset makes it work again.
#include <latch>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/forwarding_bootstrap.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

EngineOptions SlicesInFlight() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 256;
  options.lane_window_bytes = 1024;
  return options;
}

std::vector<NodeMap> Maps() {
  return {NodeMap::OneNode(4), NodeMap::RanksPerNode(4, 2), NodeMap::RanksPerNode(4, 1)};
}

TEST(Abort, ReachesTheRanksThatWaitOnEveryNode) {
  for (const NodeMap& nodes : Maps()) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
      Work work;
      if (bootstrap.rank() != 1) work = fixture.engine->Barrier(fixture.lane);
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (bootstrap.rank() == 1) {
        fixture.engine->Abort(absl::DataLossError("checkpoint unreadable"));
        EXPECT_THAT(fixture.engine->status(),
                    StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checkpoint unreadable")));
        return absl::OkStatus();
      }
      // An engine that learns of the failure before it takes the operation refuses it.
      const absl::Status failed = work.Wait();
      EXPECT_TRUE(absl::IsDataLoss(failed) || absl::IsAborted(failed)) << failed;
      EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 1: checkpoint unreadable"));
      EXPECT_TRUE(work.Test());
      EXPECT_TRUE(work.TestReleased());
      EXPECT_FALSE(fixture.engine->status().ok());
      return absl::OkStatus();
    });
  }
}

TEST(Abort, RefusesLaterOperationsWithTheCause) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
    fixture.engine->Abort(absl::DataLossError("first"));
    fixture.engine->Abort(absl::DataLossError("second"));
    Work work = fixture.engine->Barrier(fixture.lane);
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kAborted, HasSubstr("first")));
    return absl::OkStatus();
  });
}

// Notices have a limited length. Python refuses text that is not UTF-8.
TEST(Abort, TellsOtherRanksWholeCharacters) {
  const std::string letter = "\u00E9";
  for (const NodeMap& nodes : Maps()) {
    for (const char* start : {"", "x"}) {  // A limit is within a letter of one of the texts.
      std::string cause = start;
      for (int i = 0; i < 1000; ++i) cause += letter;
      RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
        if (bootstrap.rank() == 1) {
          fixture.engine->Abort(absl::DataLossError(cause));
        } else {
          const std::string message(fixture.engine->Barrier(fixture.lane).Wait().message());
          EXPECT_TRUE(message.ends_with(letter)) << message;
        }
        return BootstrapBarrier(bootstrap);
      });
    }
  }
}

TEST(ResetAfterError, MakesTheEngineWorkAgainAfterEveryFailure) {
  for (const NodeMap& nodes : Maps()) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
      for (int round = 0; round < 3; ++round) {
        WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
        // The error must not reach a rank that still checks the engine.
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        if (bootstrap.rank() == round) fixture.engine->Abort(absl::DataLossError("again"));
        Work work = fixture.engine->Barrier(fixture.lane);
        EXPECT_FALSE(work.Wait().ok());
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());  // A second reset is harmless.
        EXPECT_OK(fixture.engine->status());
      }
      return CheckEngineWorks(fixture);
    });
  }
}

// A bootstrap whose rank does not wait in a chosen exchange.
class HastyBootstrap final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;

  // The next exchange fails unless all ranks have arrived.
  void DoNotWait() { waits_ = false; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    return ForwardingBootstrap::AllGatherBlob(blob,
                                              std::exchange(waits_, true) ? timeout : absl::ZeroDuration());
  }

 private:
  bool waits_ = true;
};

// The rank that gave up is one round of blobs ahead of the late one.
TEST(ResetAfterError, MayBeTriedAgainAfterADeadline) {
  for (const NodeMap& nodes : {NodeMap::OneNode(2), NodeMap::RanksPerNode(2, 1)}) {
    std::latch gave_up(1);
    RunRanks(nodes, [&](Bootstrap& base) -> absl::Status {
      HastyBootstrap bootstrap(base);
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (bootstrap.rank() == 0) {
        bootstrap.DoNotWait();
        EXPECT_THAT(fixture.engine->ResetAfterError(),
                    StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 did not arrive")));
        EXPECT_FALSE(fixture.engine->status().ok());
        gave_up.count_down();
      } else {
        gave_up.wait();
      }
      return ResetUntilItWorks(fixture, bootstrap.runtime(), kTestTimeout);
    });
  }
}

// Operations of several lanes are at various stages when the ranks reset. None of their data arrives
// afterwards.
TEST(ResetAfterError, DropsOperationsThatWereInFlight) {
  constexpr int64_t kCount = 6000;
  for (const NodeMap& nodes : Maps()) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
      WEFT_ASSIGN_OR_RETURN(const LaneId other,
                            fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllReduce));
      for (int round = 0; round < 5; ++round) {
        WEFT_ASSIGN_OR_RETURN(TestBuffer a, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
        WEFT_ASSIGN_OR_RETURN(TestBuffer b,
                              TestBuffer::Make(*fixture.pool, round % 2 == 0, DType::kI32, kCount));
        std::vector<Work> works;
        // The last rank does not submit the last two operations.
        const int count = bootstrap.rank() == bootstrap.size() - 1 ? 4 : 6;
        for (int i = 0; i < count; ++i) {
          const LaneId lane = i % 2 == 0 ? fixture.lane : other;
          TestBuffer& buffer = i % 2 == 0 ? a : b;
          works.push_back(fixture.engine->AllReduce(lane, buffer.data(), buffer.data(), DType::kI32, kCount,
                                                    ReduceOp::kSum));
        }
        WEFT_RETURN_IF_ERROR(works.front().Wait());
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
        works.clear();
        WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      }
      return absl::OkStatus();
    });
  }
}

// A reset releases operations that were *ready* before the failure: no rank reads their memory after it.
TEST(ResetAfterError, ReleasesOperationsThatWereReady) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    EngineOptions options = SlicesInFlight();
    options.timeout = absl::Hours(1);  // A destructor that waits would time out.
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, 10));
    {
      Work work;
      if (bootstrap.rank() == 0) {
        work = fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kF32, 10, /*root=*/0);
        WEFT_RETURN_IF_ERROR(work.Wait());
        EXPECT_FALSE(work.TestReleased());
        fixture.engine->Abort(absl::DataLossError("gone"));
        EXPECT_TRUE(work.TestReleased());
        EXPECT_THAT(work.WaitReleased(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("gone")));
        EXPECT_OK(work.Wait());
      }
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
      if (bootstrap.rank() == 0) {
        EXPECT_OK(work.Wait());
        EXPECT_OK(work.WaitReleased());
      }
    }
    return CheckEngineWorks(fixture);
  });
}

// The watchdog would take it for one that still runs, and end the process after the reset.
TEST(ResetAfterError, LeavesNoRunningOperationInTheFlightRecorder) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
    Work work;
    if (bootstrap.rank() == 0) {
      work = fixture.engine->Barrier(fixture.lane);
      EXPECT_THAT(work.Wait(absl::Milliseconds(1)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::_));
      EXPECT_THAT(fixture.engine->RecorderJson(), HasSubstr(R"("state": "running")"));
      fixture.engine->Abort(absl::DataLossError("gone"));
      EXPECT_THAT(fixture.engine->RecorderJson(), HasSubstr(R"("state": "failed")"));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    EXPECT_THAT(fixture.engine->RecorderJson(), ::testing::Not(HasSubstr(R"("state": "running")")));
    return CheckEngineWorks(fixture);
  });
}

TEST(ResetAfterError, RefusesToStartAfterAnOperationThatFailed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight()));
    fixture.engine->Abort(absl::DataLossError("gone"));
    Work failed = fixture.engine->Barrier(fixture.lane);
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    Work next = fixture.engine->Barrier(fixture.lane, {}, &failed);
    EXPECT_THAT(next.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("after")));
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    return CheckEngineWorks(fixture);
  });
}

// A bootstrap whose exchanges take a millisecond more from a moment on.
class SlowBootstrap final : public ForwardingBootstrap {
 public:
  using ForwardingBootstrap::ForwardingBootstrap;

  void SlowDown() { is_slow_ = true; }
  // Exchanges that have begun since.
  int exchanges() const { return exchanges_; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override {
    if (is_slow_) {
      ++exchanges_;
      runtime().SleepFor(1'000'000);
    }
    return ForwardingBootstrap::AllGatherBlob(blob, timeout);
  }

 private:
  bool is_slow_ = false;
  int exchanges_ = 0;
};

// A callback may submit while another thread resets the engine. Else its operation would take a sequence that
// the ranks use anew. Virtual time.
TEST(ResetAfterError, AwaitsCallbacksThatRun) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(2), SimOptions{}, [](Bootstrap& base) -> absl::Status {
        SlowBootstrap bootstrap(base);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesInFlight(),
                                                                         /*segment_bytes=*/size_t{8} << 20));
        Runtime& runtime = bootstrap.runtime();
        bool has_begun = false;
        bool is_refused = false;
        bool has_ended = false;
        if (bootstrap.rank() == 0) {
          Work work = fixture.engine->Barrier(fixture.lane);
          work.Then([&](const absl::Status& /*status*/) {
            has_begun = true;
            // Until the last phase of the reset, which does not come before this callback has returned.
            const Deadline deadline(runtime, absl::Milliseconds(100));
            while (bootstrap.exchanges() < 2 && !deadline.HasPassed()) runtime.SleepFor(10'000);
            Work next = fixture.engine->Barrier(fixture.lane);
            EXPECT_TRUE(next.TestReleased());
            next.Then([&](const absl::Status& refused) {
              EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAborted, HasSubstr("the engine has failed")));
              is_refused = true;
            });
            next.Detach({});
            EXPECT_EQ(bootstrap.exchanges(), 0);
            has_ended = is_refused;
          });
          work.Detach({});
        }
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        if (bootstrap.rank() == 1) fixture.engine->Abort(absl::DataLossError("gone"));
        while (bootstrap.rank() == 0 && !has_begun) runtime.Yield();
        bootstrap.SlowDown();
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
        EXPECT_TRUE(has_ended || bootstrap.rank() == 1);
        return CheckEngineWorks(fixture);
      });
  EXPECT_OK(report.status());
}

// A callback that hangs is a fault of the program. The error says so.
TEST(ResetAfterError, NamesCallbacksThatDoNotReturn) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::OneNode(1), SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options = SlicesInFlight();
        options.timeout = absl::Milliseconds(100);
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, options, /*segment_bytes=*/size_t{8} << 20));
        Runtime& runtime = bootstrap.runtime();
        bool has_begun = false;
        bool may_end = false;
        Work work = fixture.engine->Receive({0, /*tag=*/0}, nullptr, DType::kU8, 0);
        work.Then([&](const absl::Status& /*status*/) {
          has_begun = true;
          while (!may_end) runtime.SleepFor(10'000);
        });
        work.Detach({});
        fixture.engine->Abort(absl::DataLossError("gone"));
        while (!has_begun) runtime.Yield();
        EXPECT_THAT(fixture.engine->ResetAfterError(),
                    StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("callback of Work::Then")));
        may_end = true;
        WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
        return CheckEngineWorks(fixture);
      });
  EXPECT_OK(report.status());
}

}  // namespace
}  // namespace weft::testing
