// Invalid arguments give a failed Work whose error names the argument. No data moves.
#include <gtest/gtest.h>

#include "tests/comm/support/arguments_fixture.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Arguments = ArgumentsFixture;

TEST_F(Arguments, CountsMustFitTheGroup) {
  const std::vector<int64_t> two = {1, 2};
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, 3, two),
                HasSubstr("all_gather: 2 counts for a group of 1 ranks"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kF32, 3, ReduceOp::kSum, two),
                HasSubstr("reduce_scatter: 2 counts for a group of 1 ranks"));
  ExpectRefused(engine().AllToAll(lane(), memory(), two, memory(), std::vector<int64_t>{3}, DType::kF32),
                HasSubstr("all_to_all, send: 2 counts"));
  ExpectRefused(engine().AllToAll(lane(), memory(), std::vector<int64_t>{3}, memory(), two, DType::kF32),
                HasSubstr("all_to_all, receive: 2 counts"));
}

TEST_F(Arguments, CountsMustAddUpToTheTotal) {
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, 5, std::vector<int64_t>{4}),
                AllOf(HasSubstr("all_gather: counts add up to 4"), HasSubstr("5 elements")));
}

TEST_F(Arguments, CountsMustNotBeNegative) {
  const std::vector<int64_t> negative = {-1};
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, -1), HasSubstr("-1 is negative"));
  ExpectRefused(engine().AllReduce(lane(), memory(), memory(), DType::kF32, -4, ReduceOp::kSum),
                HasSubstr("all_reduce: a count of -4 is negative"));
  ExpectRefused(engine().Broadcast(lane(), memory(), DType::kF32, -4, 0),
                HasSubstr("broadcast: a count of -4"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kF32, 0, ReduceOp::kSum, negative),
                HasSubstr("negative"));
  ExpectRefused(engine().AllToAll(lane(), memory(), negative, memory(), negative, DType::kF32),
                HasSubstr("negative"));
}

TEST_F(Arguments, PartRangesMustFitTheGroup) {
  const auto two = PartRanges::Make({{{0, 1}}, {{1, 1}}}).value();
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, two),
                HasSubstr("all_gather: part ranges of 2 ranks for group world of 1 ranks"));
  ExpectRefused(engine().AllGatherDelta(lane(), memory(), memory(), two), HasSubstr("all_gather_delta"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kF32, ReduceOp::kSum, nullptr),
                HasSubstr("reduce_scatter: no part ranges for group world"));
}

TEST_F(Arguments, SourceViewsMustAscendAndHaveAllParts) {
  const auto parts = PartRanges::Make({{{0, 4}, {6, 2}}}).value();
  const auto refused = [&](const std::vector<SourceView>& views, const std::string& text) {
    ExpectRefused(engine().ReduceScatter(lane(), views, memory(), DType::kF32, ReduceOp::kSum, parts),
                  HasSubstr(text));
  };
  refused({{{4, 4}, memory()}, {{0, 4}, memory()}}, "reduce_scatter: view 1 of elements [0, 4) follows");
  refused({{{0, 4}, memory()}, {{6, 1}, memory()}}, "no view has the elements [6, 8) of the part of rank 0");
  refused({{{0, 2}, nullptr}, {{2, 6}, nullptr}}, "make part ranges with CutsOf the views");
  refused({}, "no view has the elements [0, 4)");
}

TEST_F(Arguments, PartsMustBeSupportedTensors) {
  const TensorView good = TensorView::Contiguous(memory(), DType::kF32, {2, 3});
  const auto refused = [&](const TensorView& send, const TensorView& receive, const std::string& text) {
    ExpectRefused(engine().AllToAll(lane(), {send}, {receive}, DType::kF32), HasSubstr(text));
    if (send.dtype == receive.dtype) {
      ExpectRefused(engine().SendReceive(lane(), send, 0, receive, 0), HasSubstr("send_receive"));
    }
  };
  refused(TensorView::Contiguous(memory(), DType::kF32, {1, 1, 1, 1, 1, 1}), good,
          "all_to_all, send to rank 0: a part has 6 dims, but at most 5");
  refused(good, TensorView::Contiguous(nullptr, DType::kF32, {2, 3}),
          "receive from rank 0: the data of a part of shape [2, 3] is null");
  refused(good, TensorView::Contiguous(memory(), DType::kF32, {3, 2}),
          "sends itself a part of shape [2, 3], but expects [3, 2]");
  refused(good, {memory(), DType::kF32, {2, 3}, {0, 1}}, "receive from rank 0: dim 0 has stride 0");
  refused(good, TensorView::Contiguous(memory(), DType::kBF16, {2, 3}),
          "a part is in bf16, but the exchange is in f32");
  refused(good, TensorView::Contiguous(memory(), DType::kF32, {2, -3}), "negative size");
  ExpectRefused(engine().AllToAll(lane(), {good, good}, {good}, DType::kF32),
                HasSubstr("all_to_all, send: 2 parts for a group of 1 ranks"));
  ExpectRefused(engine().AllToAll(lane(), {good}, {}, DType::kF32),
                HasSubstr("all_to_all, receive: 0 parts for a group of 1 ranks"));
  ExpectRefused(engine().SendReceive(lane(), good, 1, good, 0),
                HasSubstr("send_receive: 1 is not a rank of group world of size 1"));
  ExpectRefused(engine().SendReceive(lane(), good, 0, good, -1), HasSubstr("-1 is not a rank"));
}

TEST_F(Arguments, AllToAllNeedsBothLists) {
  const std::vector<int64_t> one = {1};
  ExpectRefused(engine().AllToAll(lane(), memory(), {}, memory(), one, DType::kF32),
                HasSubstr("both be given"));
  ExpectRefused(engine().AllToAll(lane(), memory(), one, memory(), {}, DType::kF32),
                HasSubstr("both be given"));
}

TEST_F(Arguments, AnAverageOfIntegersIsNotDefined) {
  ExpectRefused(engine().AllReduce(lane(), memory(), memory(), DType::kI32, 4, ReduceOp::kAverage),
                HasSubstr("all_reduce: an average of i32 is not defined"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kI64, 4, ReduceOp::kAverage),
                HasSubstr("reduce_scatter: an average of i64"));
}

TEST_F(Arguments, OnlySumsOfFloatsAreScaled) {
  OpOptions half;
  half.scale = 0.5F;
  ExpectRefused(
      engine().AllReduce(lane(), memory(), memory(), DType::kI32, 4, ReduceOp::kSum, half),
      HasSubstr("all_reduce: a sum of i32 with the factor 0.5; only sums of floating-point numbers"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kF32, 4, ReduceOp::kMax, {}, half),
                HasSubstr("reduce_scatter: a max of f32 with the factor 0.5"));
}

TEST_F(Arguments, ABitwiseReductionOfFloatsIsNotDefined) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
      ExpectRefused(engine().AllReduce(lane(), memory(), memory(), dtype, 2, op),
                    HasSubstr("reduce integers of the same size"));
    }
  }
}

TEST_F(Arguments, TheRootMustBeARankOfTheGroup) {
  ExpectRefused(engine().Broadcast(lane(), memory(), DType::kF32, 4, 1),
                HasSubstr("root 1 is not a rank of group world"));
  ExpectRefused(engine().Broadcast(lane(), memory(), DType::kF32, 4, -1), HasSubstr("root -1"));
}

TEST_F(Arguments, TheLaneMustBeOneOfTheEngine) {
  ExpectRefused(engine().Barrier(LaneId{}), HasSubstr("lane -1 is not a lane of this engine"));
  ExpectRefused(engine().AllReduce(LaneId{7}, memory(), memory(), DType::kF32, 4, ReduceOp::kSum),
                HasSubstr("lane 7"));
}

TEST_F(Arguments, TheCauseOfAnAbortMustBeAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // The engine has a thread.
  EXPECT_DEATH(engine().Abort(absl::OkStatus()), "the cause of an abort must be an error");
}

TEST(ArgumentsOfGroups, EqualPartsMustDivide) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    Work work = fixture.engine->AllGather(fixture.lane, nullptr, nullptr, DType::kF32, 5);
    EXPECT_FALSE(work.Wait().ok());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_THAT(fixture.engine->status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("5 elements do not divide among 2 ranks")));
    return absl::OkStatus();
  });
}

TEST(ArgumentsOfGroups, ASharedOutputMustLieInNodeMemory) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::vector<float> own(64);
    Work work = fixture.engine->AllGatherShared(fixture.lane, own.data(), own.data(), DType::kF32, 64);
    EXPECT_FALSE(work.Wait().ok());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_THAT(
        fixture.engine->status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("all_gather_shared: the output of 256 bytes does not lie in node memory")));
    return absl::OkStatus();
  });
}

TEST(ArgumentsOfGroups, BuffersOfPartRangesMustLieInNodeMemory) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, 64));
    std::vector<float> own(64);
    const auto parts = PartRanges::Make({{{0, 8}, {32, 8}}, {{8, 24}}}).value();
    const auto refused = [&](Work work, const char* message) -> absl::Status {
      EXPECT_FALSE(work.Wait().ok());
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      EXPECT_THAT(fixture.engine->status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
      WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
      return BootstrapBarrier(bootstrap);
    };
    CommEngine& engine = *fixture.engine;
    WEFT_RETURN_IF_ERROR(refused(engine.AllGather(fixture.lane, own.data(), own.data(), DType::kF32, parts),
                                 "all_gather: the output of 160 bytes does not lie in node memory"));
    WEFT_RETURN_IF_ERROR(
        refused(engine.AllGather(fixture.lane, own.data(), buffer.data(), DType::kF32, parts),
                "all_gather: the input of"));
    return refused(
        engine.ReduceScatter(fixture.lane, own.data(), buffer.data(), DType::kF32, ReduceOp::kSum, parts),
        "reduce_scatter: the input of 160 bytes");
  });
}

TEST_F(Arguments, ALaneMustBeOfTheCallersGroup) {
  EXPECT_THAT(engine().AddLane({"other", {0, 1}, 1}, LanePurpose::kContext),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 is not rank 1 of group other")));
  EXPECT_THAT(engine().AddLane({"none", {}, 0}, LanePurpose::kContext),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group none")));
}

TEST_F(Arguments, ALaneMustBeOfRanksOfTheJobOnceEach) {
  const auto expect_refused = [&](const std::vector<int>& ranks, const char* message) {
    const ProcessGroup group{"other", ranks, 0};
    const GroupExchange alone = [](std::string_view blob) { return std::vector(2, std::string(blob)); };
    for (const absl::Status& status :
         {engine().AddLane(group, LanePurpose::kContext).status(),
          engine().SharedLane(group, LanePurpose::kContext).status(),
          engine().GroupLane({"other", ranks, 0}, LanePurpose::kContext, 0, alone).status()})
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect_refused({0, 7}, "group other has rank 7, but the job has ranks 0 to 0; use ranks of the job only");
  expect_refused({0, -1}, "group other has rank -1");
  expect_refused({0, 0}, "group other has rank 0 more than once; name each rank once");
}

TEST_F(Arguments, MemoryLimitsLanes) {
  const auto heap = NodeHeap::Create(*bootstraps_[0], {.segment_bytes = 8 << 20});
  ASSERT_OK(heap);
  const auto engine = CommEngine::Create(*bootstraps_[0], **heap);
  ASSERT_OK(engine);
  absl::Status status;
  int added = 0;
  for (; status.ok() && added < 10'000; ++added) {
    status = (*engine)->AddLane(WorldGroup(*bootstraps_[0]), LanePurpose::kContext).status();
  }
  EXPECT_GT(added, 1'500);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("world/context")));
}

TEST_F(Arguments, OptionsMustBeInRange) {
  const auto expect_refused = [&](const EngineOptions& options, const char* name) {
    const auto heap = NodeHeap::Create(*bootstraps_[0], {.segment_bytes = 1 << 24});
    ASSERT_OK(heap);
    EXPECT_THAT(CommEngine::Create(*bootstraps_[0], **heap, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  EngineOptions options;
  options.slice_bytes = 0;
  expect_refused(options, "slice_bytes");
  options = {};
  options.piece_bytes = -1;
  expect_refused(options, "piece_bytes");
  options = {};
  options.reduce_fan_in = 0;
  expect_refused(options, "reduce_fan_in");
  options = {};
  options.reduce_window_bytes = 0;
  expect_refused(options, "reduce_window_bytes");
  options = {};
  options.recorder_entries = 0;
  expect_refused(options, "recorder_entries");
  options = {};
  options.timeout = absl::ZeroDuration();
  expect_refused(options, "timeout");
  options = {};
  options.slice_bytes = int64_t{1} << 40;
  expect_refused(options, "slice_bytes");
}

TEST_F(Arguments, AnEngineWithoutATimeoutTakesThatOfTheEnvironment) {
  const auto made = [&](std::optional<absl::Duration> timeout) -> absl::StatusOr<absl::Duration> {
    EngineOptions options;
    options.timeout = timeout;
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(*bootstraps_[0], {.segment_bytes = 1 << 24,
                                                                              .timeout = absl::Minutes(1)}));
    WEFT_ASSIGN_OR_RETURN(const auto engine, CommEngine::Create(*bootstraps_[0], *heap, options));
    return engine->timeout();
  };
  {
    const ScopedVariable set("WEFT_TIMEOUT_S", "2.5");
    EXPECT_EQ(made(std::nullopt).value_or(absl::ZeroDuration()), absl::Milliseconds(2500));
    EXPECT_EQ(made(absl::Seconds(7)).value_or(absl::ZeroDuration()), absl::Seconds(7));
  }
  const ScopedVariable wrong("WEFT_TIMEOUT_S", "soon");
  EXPECT_THAT(made(std::nullopt), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("WEFT_TIMEOUT_S is 'soon': set it to a positive")));
  EXPECT_EQ(made(absl::Seconds(7)).value_or(absl::ZeroDuration()), absl::Seconds(7));
  EXPECT_THAT(NodeHeap::Create(*bootstraps_[0], {.segment_bytes = 1 << 24}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WEFT_TIMEOUT_S")));
}

}  // namespace
}  // namespace weft::testing
