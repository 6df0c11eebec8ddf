// Threads that wait move data themselves, and a submission moves a small collective that it completes. The
// progress thread of every rank is held meanwhile.
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLarge = int64_t{256} << 10;  // Elements of a part that takes several pieces.
constexpr int64_t kSmall = 256;
constexpr int64_t kClaimed = 20'480;  // Elements of an output that ranks claim, whole or in parts.
// Elements of a part of each rank, if only ranks that wait move what others own.
constexpr int64_t kClaimedByWaiting = 48 * 1024;

// Keeps the progress thread of an engine in a callback.
class HeldProgressThread {
 public:
  explicit HeldProgressThread(EngineFixture& fixture) {
    const MessageAddress self{.peer = fixture.engine->bootstrap().rank()};
    Work received = fixture.engine->Receive(self, &state_->received, DType::kU8, 1);
    received.Then([state = state_](const absl::Status& /*status*/) {
      state->held.count_down();
      state->end.wait();
    });
    Work sent = fixture.engine->Send(self, &state_->sent, DType::kU8, 1);
    received.Detach({});
    sent.Detach({});
    state_->held.wait();
  }
  ~HeldProgressThread() { state_->end.count_down(); }
  HeldProgressThread(const HeldProgressThread&) = delete;
  HeldProgressThread& operator=(const HeldProgressThread&) = delete;

 private:
  struct State {
    std::byte sent{};
    std::byte received{};
    std::latch held{1};
    std::latch end{1};
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // The callback may outlive this object.
};

// A part of `count` f32 of each rank, and the gathered parts.
struct Gathered {
  TestBuffer part, whole;
  int64_t count;

  static absl::StatusOr<Gathered> Make(EngineFixture& fixture, int64_t count) {
    const int ranks = fixture.engine->bootstrap().size();
    WEFT_ASSIGN_OR_RETURN(TestBuffer part, TestBuffer::Make(*fixture.pool, true, DType::kF32, count));
    WEFT_ASSIGN_OR_RETURN(TestBuffer whole,
                          TestBuffer::Make(*fixture.pool, true, DType::kF32, ranks * count));
    return Gathered{std::move(part), std::move(whole), count};
  }
  Work Submit(EngineFixture& fixture, LaneId lane, double value) {
    const int ranks = fixture.engine->bootstrap().size();
    part.Write(0,
               std::vector<double>(static_cast<size_t>(count), value + fixture.engine->bootstrap().rank()));
    return fixture.engine->AllGather(lane, part.data(), whole.data(), DType::kF32, ranks * count);
  }
  void Check(int ranks, double value) {
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(whole.Read(rank * count, count),
                std::vector<double>(static_cast<size_t>(count), value + rank));
  }
};

TEST(Waiting, MovesDataWithoutTheProgressThread) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    const HeldProgressThread held(fixture);
    for (const int64_t count : {kSmall, kLarge}) {
      WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, count));
      WEFT_RETURN_IF_ERROR(gathered.Submit(fixture, fixture.lane, 1).WaitReleased());
      gathered.Check(bootstrap.size(), 1);
      Work sum = fixture.engine->AllReduce(fixture.lane, gathered.part.data(), gathered.part.data(),
                                           DType::kF32, count, ReduceOp::kSum);
      WEFT_RETURN_IF_ERROR(sum.WaitReleased());
      EXPECT_EQ(gathered.part.Read(0, count), std::vector<double>(static_cast<size_t>(count), 6));
    }
    return absl::OkStatus();
  });
}

TEST(Waiting, OfSeveralThreadsMovesTheDataOfAll) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    WEFT_ASSIGN_OR_RETURN(const LaneId other,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
    const HeldProgressThread held(fixture);
    const auto run = [&](LaneId lane, int64_t count) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, count));
      for (int round = 0; round < 20; ++round) {
        WEFT_RETURN_IF_ERROR(gathered.Submit(fixture, lane, round).WaitReleased());
        gathered.Check(bootstrap.size(), round);
      }
      return absl::OkStatus();
    };
    std::thread beside([&] { EXPECT_OK(run(other, 8 * kSmall)); });
    const absl::Status status = run(fixture.lane, kLarge);
    beside.join();
    return status;
  });
}

TEST(Waiting, EndsAtItsDeadlineAndContinuesTheOperationLater) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    const HeldProgressThread held(fixture);
    for (const int64_t count : {kSmall, kLarge}) {
      WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, count));
      Work work;
      if (bootstrap.rank() == 0) {
        work = gathered.Submit(fixture, fixture.lane, 1);
        EXPECT_THAT(work.Wait(absl::Milliseconds(1)),
                    StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waits for rank(s) 1")));
      }
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (bootstrap.rank() == 1) work = gathered.Submit(fixture, fixture.lane, 1);
      WEFT_RETURN_IF_ERROR(work.WaitReleased());
      gathered.Check(bootstrap.size(), 1);
    }
    return absl::OkStatus();
  });
}

TEST(Waiting, FailsOnceAPeerHasLeft) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    const HeldProgressThread held(fixture);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, kSmall));
    Work work = gathered.Submit(fixture, fixture.lane, 1);
    EXPECT_THAT(work.WaitReleased(),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 destroyed its engine")));
    return absl::OkStatus();
  });
}

// The last rank to submit moves the data of all, before its submission returns.
TEST(Submission, CompletesASmallCollectiveOfWhichAllOtherRanksWait) {
  for (const int ranks : {2, 5}) {
    RunRanks(NodeMap::OneNode(ranks), [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
      WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, kSmall));
      WEFT_ASSIGN_OR_RETURN(Gathered claimed, Gathered::Make(fixture, kClaimed / bootstrap.size()));
      WEFT_ASSIGN_OR_RETURN(TestBuffer sum, TestBuffer::Make(*fixture.pool, true, DType::kF32, kSmall));
      WEFT_ASSIGN_OR_RETURN(TestBuffer sums, TestBuffer::Make(*fixture.pool, true, DType::kF32, kClaimed));
      sums.Write(0, std::vector<double>(kClaimed, 3));
      // The first operation may have to wait until the host of the lane has opened it.
      WEFT_RETURN_IF_ERROR(fixture.engine->Barrier(fixture.lane).WaitReleased());
      const HeldProgressThread held(fixture);
      const bool is_last = bootstrap.rank() == bootstrap.size() - 1;
      const std::vector<std::function<Work()>> collectives = {
          [&] { return gathered.Submit(fixture, fixture.lane, 1); },
          [&] { return claimed.Submit(fixture, fixture.lane, 2); },
          [&] {
            return fixture.engine->Broadcast(fixture.lane, gathered.part.data(), DType::kF32, kSmall, 0);
          },
          [&] {
            return fixture.engine->ReduceScatter(fixture.lane, gathered.whole.data(), sum.data(), DType::kF32,
                                                 kSmall * bootstrap.size(), ReduceOp::kSum);
          },
          [&] {
            return fixture.engine->AllReduce(fixture.lane, gathered.part.data(), sum.data(), DType::kF32,
                                             kSmall, ReduceOp::kSum);
          },
          [&] {
            return fixture.engine->AllReduce(fixture.lane, sums.data(), sums.data(), DType::kF32, kClaimed,
                                             ReduceOp::kSum);
          }};
      for (const std::function<Work()>& submit : collectives) {
        Work work;
        if (!is_last) work = submit();
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        if (is_last) {
          work = submit();
          EXPECT_TRUE(work.TestReleased());
        }
        WEFT_RETURN_IF_ERROR(
            BootstrapBarrier(bootstrap));  // A rank that waits would claim outputs of the last one.
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
      }
      gathered.Check(bootstrap.size(), 1);
      claimed.Check(bootstrap.size(), 2);
      EXPECT_EQ(sum.Read(0, kSmall), std::vector<double>(kSmall, bootstrap.size()));
      EXPECT_EQ(sums.Read(0, kClaimed), std::vector<double>(kClaimed, 3 * bootstrap.size()));
      return absl::OkStatus();
    });
  }
}

// No thread of the other ranks enters the engine after the submission.
TEST(Waiting, OneRankWritesTheOutputsOfRanksThatDoNotRun) {
  for (const int ranks : {2, 4}) {
    RunRanks(NodeMap::OneNode(ranks), [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, size_t{64} << 20));
      WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, kClaimedByWaiting));
      WEFT_RETURN_IF_ERROR(fixture.engine->Barrier(fixture.lane).WaitReleased());
      const HeldProgressThread held(fixture);
      const bool is_last = bootstrap.rank() == bootstrap.size() - 1;
      Work work;
      if (!is_last) work = gathered.Submit(fixture, fixture.lane, 1);
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      if (is_last) {
        work = gathered.Submit(fixture, fixture.lane, 1);
        EXPECT_TRUE(work.Test());  // Its own output is written.
        EXPECT_FALSE(work.TestReleased());
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
      }
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      gathered.Check(bootstrap.size(), 1);
      return work.WaitReleased();
    });
  }
}

// The same for reductions. The last rank writes its own part before its submission returns.
TEST(Waiting, OneRankReducesThePartsOfRanksThatDoNotRun) {
  for (const int ranks : {2, 4}) {
    RunRanks(NodeMap::OneNode(ranks), [](Bootstrap& bootstrap) -> absl::Status {
      const int64_t count = bootstrap.size() * kClaimedByWaiting;
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, size_t{64} << 20));
      WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kF32, count));
      WEFT_ASSIGN_OR_RETURN(TestBuffer part,
                            TestBuffer::Make(*fixture.pool, true, DType::kF32, kClaimedByWaiting));
      WEFT_ASSIGN_OR_RETURN(TestBuffer sum, TestBuffer::Make(*fixture.pool, true, DType::kF32, count));
      input.Write(0, std::vector<double>(static_cast<size_t>(count), 1 + bootstrap.rank()));
      WEFT_RETURN_IF_ERROR(fixture.engine->Barrier(fixture.lane).WaitReleased());
      const HeldProgressThread held(fixture);
      const bool is_last = bootstrap.rank() == bootstrap.size() - 1;
      const auto run = [&](const std::function<Work()>& submit, TestBuffer& output, int64_t own_begin,
                           int64_t elements) -> absl::Status {
        const double expected = bootstrap.size() * (bootstrap.size() + 1) / 2;
        Work work;
        if (!is_last) work = submit();
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        if (is_last) {
          work = submit();
          EXPECT_EQ(output.Read(own_begin, kClaimedByWaiting),
                    std::vector<double>(kClaimedByWaiting, expected));
          EXPECT_FALSE(work.TestReleased());
          WEFT_RETURN_IF_ERROR(work.WaitReleased());
        }
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        EXPECT_EQ(output.Read(0, elements), std::vector<double>(static_cast<size_t>(elements), expected));
        return work.WaitReleased();
      };
      const auto reduce_scatter = [&] {
        return fixture.engine->ReduceScatter(fixture.lane, input.data(), part.data(), DType::kF32, count,
                                             ReduceOp::kSum);
      };
      const auto all_reduce = [&] {
        return fixture.engine->AllReduce(fixture.lane, input.data(), sum.data(), DType::kF32, count,
                                         ReduceOp::kSum);
      };
      WEFT_RETURN_IF_ERROR(run(reduce_scatter, part, 0, kClaimedByWaiting));
      return run(all_reduce, sum, bootstrap.rank() * kClaimedByWaiting, count);
    });
  }
}

// One poll releases the memory of an operation and takes a task of another.
TEST(Waiting, AnOwnerOfReleasedMemoryMayWaitForAFailedOperation) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    CommEngine& engine = *fixture.engine;
    WEFT_ASSIGN_OR_RETURN(Gathered gathered, Gathered::Make(fixture, kLarge));
    WEFT_RETURN_IF_ERROR(engine.Barrier(fixture.lane).WaitReleased());
    const HeldProgressThread held(fixture);
    if (bootstrap.rank() == 1) {
      Work gather = gathered.Submit(fixture, fixture.lane, 1);
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      WEFT_RETURN_IF_ERROR(gather.Wait());  // Releases the gather of rank 0.
      return BootstrapBarrier(bootstrap);
    }
    std::vector<float> sums(kLarge, 1);
    Work reduction;
    absl::Status waited;
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    Work gather = gathered.Submit(fixture, fixture.lane, 1);
    WEFT_RETURN_IF_ERROR(gather.Wait());
    EXPECT_FALSE(gather.TestReleased());
    gather.Detach({std::shared_ptr<void>(gathered.whole.data(), [&](void* /*data*/) {
      engine.Abort(absl::DataLossError("enough"));
      waited = reduction.Wait();
    })});
    reduction =  // Copies `sums` to node memory, in several tasks.
        engine.AllReduce(fixture.lane, sums.data(), sums.data(), DType::kF32, kLarge, ReduceOp::kSum);
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_THAT(reduction.Wait(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("enough")));
    EXPECT_THAT(waited, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("enough")));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
