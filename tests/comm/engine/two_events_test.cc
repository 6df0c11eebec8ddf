// *Ready* and *released* are two events. Buffers belong to the engine until *released*.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int64_t kGatheredElements = 5000;

std::vector<double> Ones(int64_t count) { return std::vector<double>(static_cast<size_t>(count), 1); }
std::vector<double> Garbage(int64_t count) { return std::vector<double>(static_cast<size_t>(count), -99); }

// The root of a broadcast is *ready* at once, but is not *released* before the other rank has received its
// data.
TEST(TwoEvents, ReadyIsNotReleasedWhileAReaderIsMissing) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kGatheredElements));
    const auto submit = [&] {
      return fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kF32, kGatheredElements,
                                       /*root=*/0);
    };
    Work work;
    if (bootstrap.rank() == 0) {
      buffer.Write(0, Ones(kGatheredElements));
      work = submit();
      WEFT_RETURN_IF_ERROR(work.Wait());
      EXPECT_THAT(work.WaitReleased(absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::EndsWith("waits for rank(s) 1")));
      EXPECT_EQ(work.DescribeWait(), "waits for rank(s) 1");
      EXPECT_TRUE(work.Test());
      EXPECT_FALSE(work.TestReleased());
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) work = submit();
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_TRUE(work.TestReleased());
    EXPECT_EQ(buffer.Read(0, kGatheredElements), Ones(kGatheredElements));
    return absl::OkStatus();
  });
}

// Rank 0 owns no part and is *ready* at once. Rank 1, on the same node, reads rank 0's input, and waits for
// rank 2.
TEST(TwoEvents, InputThatALocalPeerStillReadsIsNotReleased) {
  RunRanks(NodeMap{{0, 0, 1}}, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kGatheredElements));
    WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kGatheredElements));
    input.Write(0, Ones(kGatheredElements));
    const std::vector<int64_t> counts = {0, kGatheredElements - 1, 1};
    const auto submit = [&] {
      return fixture.engine->ReduceScatter(fixture.lane, input.data(), output.data(), DType::kF32,
                                           kGatheredElements, ReduceOp::kSum, counts);
    };
    Work work;
    if (bootstrap.rank() != 2) work = submit();
    if (bootstrap.rank() == 0) {
      WEFT_RETURN_IF_ERROR(work.Wait());
      EXPECT_FALSE(work.TestReleased());
      EXPECT_TRUE(absl::IsDeadlineExceeded(work.WaitReleased(absl::ZeroDuration())));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 2) work = submit();
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    input.Write(0, Garbage(kGatheredElements));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    const int64_t own = counts[static_cast<size_t>(bootstrap.rank())];
    EXPECT_EQ(output.Read(0, own), std::vector<double>(static_cast<size_t>(own), 3));
    return absl::OkStatus();
  });
}

std::shared_ptr<std::vector<float>> SharedBuffer() {
  return std::make_shared<std::vector<float>>(kGatheredElements, 1.0F);
}

TEST(TwoEvents, MemoryOfADetachedWorkIsFreedOnRelease) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    auto buffer = SharedBuffer();
    const std::weak_ptr<std::vector<float>> watched = buffer;
    const auto submit = [&] {
      Work work = fixture.engine->AllReduce(fixture.lane, buffer->data(), buffer->data(), DType::kF32,
                                            kGatheredElements, ReduceOp::kSum);
      work.Detach({std::move(buffer)});
      EXPECT_FALSE(work.valid());
    };
    if (bootstrap.rank() == 0) {
      submit();
      EXPECT_FALSE(watched.expired());
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) submit();
    WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));       // Runs after it on the lane.
    while (!watched.expired()) std::this_thread::yield();  // The progress thread may be about to free it.
    return absl::OkStatus();
  });
}

// The owner of a buffer may use the engine in its destructor. The reset of rank 1 may fail the operation of
// rank 0, or cause its refusal.
TEST(TwoEvents, MemoryOfADetachedWorkIsFreedWithoutTheEnginesLock) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    CommEngine& engine = *fixture.engine;
    for (const bool fails : {false, true}) {
      std::atomic<int> freed = 0;
      std::future<void> lookup;  // Outlives the destructor: it waits for the lock.
      WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                            TestBuffer::Make(*fixture.pool, true, DType::kI32, kGatheredElements));
      const auto owner = [&] {
        return std::shared_ptr<void>(buffer.data(), [&](void*) {
          lookup = std::async(std::launch::async, [&] { engine.status().IgnoreError(); });  // Takes the lock.
          EXPECT_EQ(lookup.wait_for(absl::ToChronoSeconds(kTestTimeout)), std::future_status::ready);
          ++freed;
        });
      };
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (!fails || bootstrap.rank() == 0) {
        engine
            .AllReduce(fixture.lane, buffer.data(), buffer.data(), DType::kI32, kGatheredElements,
                       ReduceOp::kSum)
            .Detach({owner()});
      }
      if (fails) WEFT_RETURN_IF_ERROR(engine.ResetAfterError());
      WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
      while (freed == 0 && (!fails || bootstrap.rank() == 0)) std::this_thread::yield();
      EXPECT_LE(freed, 1);
    }
    return absl::OkStatus();
  });
}

TEST(TwoEvents, MemoryOfAFailedDetachedWorkIsKeptUntilTheReset) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    for (const bool fails_first : {false, true}) {
      auto buffer = SharedBuffer();
      const std::weak_ptr<std::vector<float>> watched = buffer;
      // No rank fails while another still checks the engine.
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (bootstrap.rank() == 0) {
        Work work = fixture.engine->AllReduce(fixture.lane, buffer->data(), buffer->data(), DType::kF32,
                                              kGatheredElements,
                                              ReduceOp::kSum);  // The other rank does not submit it.
        if (fails_first) fixture.engine->Abort(absl::DataLossError("enough"));
        work.Detach({std::move(buffer)});
        if (!fails_first) fixture.engine->Abort(absl::DataLossError("enough"));
        EXPECT_FALSE(watched.expired());
      }
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      buffer.reset();
      WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
      EXPECT_TRUE(watched.expired());
      WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
    }
    return absl::OkStatus();
  });
}

// Each rank overwrites its buffers as soon as the Work is destroyed. Peers would read garbage if the
// destructor did not wait.
TEST(TwoEvents, DestroyingAnUnfinishedWorkWaitsUntilItIsReleased) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    for (int round = 0; round < 5; ++round) {
      WEFT_ASSIGN_OR_RETURN(TestBuffer input,
                            TestBuffer::Make(*fixture.pool, true, DType::kF32, kGatheredElements));
      WEFT_ASSIGN_OR_RETURN(TestBuffer output,
                            TestBuffer::Make(*fixture.pool, true, DType::kF32, 4 * kGatheredElements));
      input.Write(0, Ones(kGatheredElements));
      {
        Work work = fixture.engine->AllGather(fixture.lane, input.data(), output.data(), DType::kF32,
                                              4 * kGatheredElements);
      }
      EXPECT_EQ(fixture.engine->counters().operations, round + 1);
      input.Write(0, Garbage(kGatheredElements));
      EXPECT_EQ(output.Read(0, 4 * kGatheredElements), Ones(4 * kGatheredElements));
    }
    return absl::OkStatus();
  });
}

TEST(TwoEvents, AssigningToAnUnfinishedWorkWaitsUntilItIsReleased) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    Work work = fixture.engine->Barrier(fixture.lane);
    Work moved = std::move(work);
    EXPECT_FALSE(work.valid());  // NOLINT(bugprone-use-after-move): tests the state of a moved-from Work.
    EXPECT_TRUE(moved.valid());
    moved = Work();
    EXPECT_EQ(fixture.engine->counters().operations, 1);
    return absl::OkStatus();
  });
}

TEST(TwoEvents, DestroyingAFailedWorkDoesNotWait) {
  RunRanks(NodeMap::RanksPerNode(2, 1), [](Bootstrap& bootstrap) -> absl::Status {
    EngineOptions options;
    options.timeout = absl::Hours(1);  // A destructor that waits would time out.
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kGatheredElements));
    if (bootstrap.rank() == 0) {
      Work ready =
          fixture.engine->Broadcast(fixture.lane, buffer.data(), DType::kF32, kGatheredElements, /*root=*/0);
      WEFT_RETURN_IF_ERROR(ready.Wait());
      Work running = fixture.engine->Barrier(fixture.lane);
      Work queued = fixture.engine->Barrier(fixture.lane);
      fixture.engine->Abort(absl::DataLossError("gone"));
    }
    return BootstrapBarrier(bootstrap);  // Until then rank 1 keeps its engine.
  });
}

// No thread waits for the second operation. The progress thread, which slept beside a waiter just before,
// completes it.
TEST(TwoEvents, TheProgressThreadFinishesAnOperationAfterAWait) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, kGatheredElements));
    for (int round = 0; round < 30; ++round) {
      buffer.Write(0, Ones(kGatheredElements));
      Work awaited = fixture.engine->Barrier(fixture.lane);
      WEFT_RETURN_IF_ERROR(awaited.WaitReleased());
      Work unawaited = fixture.engine->AllReduce(fixture.lane, buffer.data(), buffer.data(), DType::kF32,
                                                 kGatheredElements, ReduceOp::kSum);
      while (!unawaited.TestReleased()) bootstrap.runtime().Yield();
      EXPECT_EQ(buffer.Read(0, kGatheredElements), std::vector<double>(kGatheredElements, 2));
    }
    return absl::OkStatus();
  });
}

// Virtual time.
TEST(TwoEvents, AReceiveNamesItsSenderOnceReady) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(2, 1), SimOptions{}, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                              EngineFixture::Make(bootstrap, SmallSliceOptions(), size_t{8} << 20));
        std::vector<std::byte> data(1 << 20);
        const auto count = static_cast<int64_t>(data.size());
        if (bootstrap.rank() == 0)
          return fixture.engine->Send({1, 3}, data.data(), DType::kU8, count).WaitReleased();
        Work receive = fixture.engine->Receive({kAnySource, 3}, data.data(), DType::kU8, count);
        while (receive.DescribeWait() != "waits for data of rank(s) 0") bootstrap.runtime().SleepFor(1'000);
        EXPECT_FALSE(receive.Test());
        EXPECT_EQ(receive.source(), kAnySource);
        WEFT_RETURN_IF_ERROR(receive.WaitReleased());
        EXPECT_EQ(receive.source(), 0);
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

}  // namespace
}  // namespace weft::testing
