#include "weft/context_parallel/pending_tensor.h"

#include <algorithm>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/thread_ranks.h"
#include "weft/memory/pool_tensor.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kCount = 1000;

// All-gather in which rank r contributes kCount elements of value r.
absl::StatusOr<PendingTensor> GatherRanks(EngineFixture& fixture) {
  const ProcessGroup& group = fixture.engine->group(fixture.lane);
  WEFT_ASSIGN_OR_RETURN(Tensor own, PoolTensor(*fixture.pool, DType::kI32, {kCount}));
  std::fill_n(own.As<int32_t>(), kCount, group.group_rank);
  WEFT_ASSIGN_OR_RETURN(Tensor all, PoolTensor(*fixture.pool, DType::kI32, {group.size(), kCount}));
  Work work = fixture.engine->AllGather(fixture.lane, own.As<int32_t>(), all.As<int32_t>(), DType::kI32,
                                        all.elements());
  return PendingTensor(std::move(all), std::move(work), {std::move(own)});
}

TEST(PendingTensor, IsInvalidUntilItHasATensor) {
  PendingTensor nothing;
  EXPECT_FALSE(nothing.valid());
  EXPECT_EQ(nothing.work(), nullptr);
  nothing = PendingTensor(Tensor::Zeros(DType::kF32, {2}));
  EXPECT_TRUE(nothing.valid());
  PendingTensor moved = std::move(nothing);
  EXPECT_TRUE(moved.valid());
  EXPECT_FALSE(nothing.valid());  // NOLINT(bugprone-use-after-move): a moved-from tensor must be invalid.
}

TEST(PendingTensor, ReturnsAReadyTensorWithoutAWork) {
  PendingTensor ready(Tensor::Zeros(DType::kF32, {3}));
  EXPECT_EQ(ready.work(), nullptr);
  ASSERT_OK_AND_ASSIGN(const Tensor tensor, ready.Wait());
  EXPECT_EQ(tensor.elements(), 3);
}

TEST(PendingTensor, KeepsAllMemoryUntilPeersHaveReadIt) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    for (int round = 0; round < 10; ++round) {
      WEFT_ASSIGN_OR_RETURN(PendingTensor pending, GatherRanks(fixture));
      // The next round reuses the blocks of this round. If they were released too early, a peer would read
      // them.
      WEFT_ASSIGN_OR_RETURN(const Tensor all, pending.Wait());
      for (int rank = 0; rank < bootstrap.size(); ++rank) {
        EXPECT_EQ(all.As<int32_t>()[rank * kCount + round], rank);
      }
    }
    WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));  // Runs after all rounds.
    EXPECT_EQ(fixture.pool->in_use_bytes(), 0U);
    return absl::OkStatus();
  });
}

TEST(PendingTensor, WaitsForTheLastOfAChain) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const LaneId sums,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllReduce));
    WEFT_ASSIGN_OR_RETURN(PendingTensor pending, GatherRanks(fixture));
    const Tensor& gathered = pending.result();
    WEFT_ASSIGN_OR_RETURN(Tensor total, PoolTensor(*fixture.pool, DType::kI32, gathered.shape()));
    Work sum = fixture.engine->AllReduce(sums, gathered.As<int32_t>(), total.As<int32_t>(), DType::kI32,
                                         total.elements(), ReduceOp::kSum, {}, pending.work());
    pending.Follow(total, std::move(sum));
    WEFT_ASSIGN_OR_RETURN(const Tensor result, pending.Wait());
    EXPECT_EQ(result.As<int32_t>(), total.As<int32_t>());
    EXPECT_EQ(result.As<int32_t>()[3 * kCount], 3 * bootstrap.size());
    return absl::OkStatus();
  });
}

TEST(PendingTensor, RunsLocalStepsOnceInTheFirstWait) {
  PendingTensor pending(Tensor::Zeros(DType::kF32, {3}));
  EXPECT_FALSE(pending.has_finish());
  int calls = 0;
  pending.FinishWith([&](const Tensor& brought) -> absl::StatusOr<Tensor> {
    ++calls;
    return Tensor::Zeros(DType::kF32, {brought.elements() + 1});
  });
  pending.FinishWith([&](const Tensor& finished) -> absl::StatusOr<Tensor> {
    return Tensor::Zeros(DType::kF32, {2 * finished.elements()});
  });
  PendingTensor moved = std::move(pending);
  EXPECT_TRUE(moved.has_finish());
  for (int wait = 0; wait < 2; ++wait) {
    ASSERT_OK_AND_ASSIGN(const Tensor finished, moved.Wait());
    EXPECT_EQ(finished.elements(), 8);
  }
  EXPECT_EQ(moved.result().elements(), 8);
  EXPECT_EQ(calls, 1);
}

TEST(PendingTensor, ReturnsTheErrorOfItsCollective) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    fixture.engine->Abort(absl::UnavailableError("the power went out"));
    WEFT_ASSIGN_OR_RETURN(PendingTensor pending, GatherRanks(fixture));
    EXPECT_THAT(pending.Wait().status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("power")));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(PendingTensor, LeavesTheMemoryOfAFailedCollectiveToTheEngine) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    if (bootstrap.rank() == 0) {
      WEFT_ASSIGN_OR_RETURN(PendingTensor pending, GatherRanks(fixture));  // The peer submits nothing.
      fixture.engine->Abort(absl::UnavailableError("the power went out"));
    }
    // An earlier reset by the peer would refuse the gather.
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_EQ(fixture.pool->in_use_bytes() > 0, bootstrap.rank() == 0);
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    EXPECT_EQ(fixture.pool->in_use_bytes(), 0U);
    return CheckEngineWorks(fixture);
  });
}

}  // namespace
}  // namespace weft::testing
