#include "weft/context_parallel/sequence_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/exchange_sweep.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/memory/pool_tensor.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EngineOptions SmallSlices() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 64;
  options.piece_bytes = 256;
  options.lane_window_bytes = 256;
  options.yield_window_bytes = 128;
  return options;
}

class SequenceExchanges : public ::testing::TestWithParam<int> {
 protected:
  static void Run(absl::Status (*sweep)(EngineFixture&)) {
    RunRanksOnEveryNodeMap(GetParam(), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SmallSlices()));
      return sweep(fixture);
    });
  }
};

TEST_P(SequenceExchanges, MoveASplitFromAnyDimToAnyOther) { Run(SweepAllToAllBetweenDims); }
TEST_P(SequenceExchanges, AreAdjointOverAllRanks) { Run(SweepAdjoints); }
TEST_P(SequenceExchanges, GatherAndReduceOverRecordedSizes) { Run(SweepGatherAndReduceScatter); }
TEST_P(SequenceExchanges, SplitAndGatherReplicatedRegionsWithTheirScale) { Run(SweepSplitAndGather); }
TEST_P(SequenceExchanges, SplitAndGatherPacksByTheirTable) { Run(SweepPacks); }
TEST_P(SequenceExchanges, SwapTheFirstRankWithTheLast) { Run(SweepPairs); }

INSTANTIATE_TEST_SUITE_P(Ranks, SequenceExchanges, ::testing::Values(1, 2, 3, 4, 7));

// The all-to-all of Ulysses moves each byte once and copies nothing.
TEST(SequenceExchange, CopiesNothingWithinANode) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    WEFT_ASSIGN_OR_RETURN(const Tensor input, PoolTensor(*fixture.pool, DType::kF32, {2, 16, 8, 4}));
    WEFT_ASSIGN_OR_RETURN(const AllToAllPlan plan,
                          AllToAllPlan::Make(input.shape(), 2, 1, 4, bootstrap.rank()));
    WEFT_ASSIGN_OR_RETURN(PendingTensor there, exchange->AllToAll(input, plan));
    WEFT_ASSIGN_OR_RETURN(const Tensor output, there.Wait());
    EXPECT_EQ(output.shape(), (Shape{2, 64, 2, 4}));
    WEFT_ASSIGN_OR_RETURN(PendingTensor back, exchange->AllToAll(output, plan.Adjoint()));
    WEFT_RETURN_IF_ERROR(back.Wait().status());
    const EngineCounters counters = fixture.engine->counters();
    EXPECT_EQ(counters.copied_bytes, 0);
    EXPECT_EQ(counters.context_bytes, 2 * static_cast<int64_t>(input.bytes()) * 3 / 4);
    return absl::OkStatus();
  });
}

TEST(SequenceExchange, SplitIsAWindowThatCopiesNothing) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    const Tensor whole = Tensor::Zeros(DType::kF32, {6});
    WEFT_ASSIGN_OR_RETURN(const DimSplit split, DimSplit::OfWhole(whole.shape(), 0, 2));
    WEFT_ASSIGN_OR_RETURN(const PendingTensor part, exchange->Split(whole, split));
    EXPECT_EQ(part.work(), nullptr);
    EXPECT_EQ(part.result().As<float>(), whole.As<float>() + 3 * bootstrap.rank());
    return absl::OkStatus();
  });
}

// A refused exchange sends nothing, so that one rank alone may try.
TEST(SequenceExchange, RefusesTensorsThatDoNotFitThePlan) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    if (bootstrap.rank() != 1) return absl::OkStatus();
    const auto refused = [](const absl::StatusOr<PendingTensor>& outcome, const auto& text) {
      EXPECT_THAT(outcome.status(), StatusIs(absl::StatusCode::kInvalidArgument, text));
    };
    const Tensor tensor = Tensor::Zeros(DType::kF32, {4, 6});
    const AllToAllPlan plan{{0, {2, 1, 1}}, {1, {6, 5, 5}}};
    refused(exchange->AllToAll(tensor, plan), AllOf(HasSubstr("all_to_all: dim 1"), HasSubstr("rank 1")));
    refused(exchange->AllToAll(tensor, {{0, {2, 2, 2}}, {1, {5, 6, 5}}}), HasSubstr("add up to 6"));
    refused(exchange->AllGather(tensor, {0, {4, 5, 4}}), HasSubstr("all_gather: dim 0 in parts of 4, 5, 4"));
    refused(exchange->ReduceScatter(tensor, {0, {4, 5, 4}}), HasSubstr("reduce_scatter: dim 0"));
    refused(exchange->Split(tensor, {1, {1, 1, 1}}), HasSubstr("split: dim 1"));
    refused(exchange->GatherBackward(tensor, {1, {1, 1, 1}}, GradientScale::kNone), HasSubstr("add up to 3"));
    refused(exchange->SplitBackward(tensor, {0, {4, 5, 4}}, GradientScale::kUp), HasSubstr("dim 0"));
    refused(exchange->SplitPack(tensor, {0, {{1}, {1}, {1}}}), HasSubstr("split of a pack"));
    refused(exchange->SplitPackBackward(tensor, {0, {{1}, {1}, {1}}}, GradientScale::kUp),
            HasSubstr("backward of a pack's split"));
    refused(exchange->ExchangePairs(tensor, {4, 5}), AllOf(HasSubstr("[4, 6]"), HasSubstr("[4, 5]")));
    const Tensor whole_numbers = Tensor::Zeros(DType::kI32, {4});
    refused(exchange->SplitBackward(whole_numbers, {0, {4, 4, 4}}, GradientScale::kDown),
            HasSubstr("in i32 is not scaled"));
    return absl::OkStatus();
  });
}

TEST(SequenceExchange, RefusesSplitsForAnotherNumberOfRanks) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    const auto refused = [](const absl::StatusOr<PendingTensor>& outcome, const auto& text) {
      EXPECT_THAT(outcome.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr(text), HasSubstr("the group has 3"))));
    };
    const Tensor tensor = Tensor::Zeros(DType::kF32, {4, 6});
    const DimSplit fewer{0, {2, 2}};
    const DimSplit more{0, {4, 4, 4, 4}};
    const DimSplit fits{1, {6, 6, 6}};
    refused(exchange->AllToAll(tensor, {fewer, fits}), "all_to_all: dim 0 in parts of 2, 2");
    refused(exchange->AllToAll(tensor, {{1, {2, 2, 2}}, more}), "over 4 ranks");
    refused(exchange->AllGather(tensor, {0, {4, 4}}), "all_gather: dim 0 in parts of 4, 4");
    refused(exchange->AllGather(tensor, more), "over 4 ranks");
    refused(exchange->ReduceScatter(tensor, fewer), "reduce_scatter: dim 0");
    refused(exchange->Split(tensor, fewer), "split: dim 0");
    refused(exchange->SplitBackward(tensor, more, GradientScale::kNone), "split's backward");
    refused(exchange->Gather(tensor, more), "over 4 ranks");
    refused(exchange->GatherBackward(tensor, fewer, GradientScale::kNone), "gather's backward");
    refused(exchange->SplitPack(tensor, {0, {{2}, {2}}}), "split of a pack");
    refused(exchange->SplitPackBackward(tensor, {0, {{4}, {4}}}, GradientScale::kNone), "a pack's split");
    refused(exchange->GatherPack(tensor, {0, {{4}, {4}}}), "over 2 ranks");
    refused(exchange->GatherPackBackward(tensor, {0, {{2}, {2}}}, GradientScale::kNone), "split of a pack");
    return absl::OkStatus();
  });
}

// The engine would stage a tensor that peers cannot read once per peer. One copy in the pool serves all of
// them.
TEST(SequenceExchange, GathersAlongAnInnerDimFromOneCopy) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    const Tensor part = Tensor::Zeros(DType::kF32, {2, 4});
    for (int64_t i = 0; i < part.elements(); ++i) part.As<float>()[i] = static_cast<float>(bootstrap.rank());
    WEFT_ASSIGN_OR_RETURN(PendingTensor pending, exchange->AllGather(part, {1, {4, 4, 4}}));
    WEFT_ASSIGN_OR_RETURN(const Tensor whole, pending.Wait());
    for (int64_t i = 0; i < whole.elements(); ++i) {
      EXPECT_EQ(whole.As<float>()[i], static_cast<float>(i % 12 / 4));
    }
    EXPECT_EQ(fixture.engine->counters().copied_bytes, 0);
    return absl::OkStatus();
  });
}

// Ranks that submit different exchanges get an error instead of each other's tensors.
TEST(SequenceExchange, FailsOnRanksWithDifferentLabels) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    const Tensor own = Tensor::Zeros(DType::kF32, {4});
    WEFT_ASSIGN_OR_RETURN(PendingTensor pending,
                          exchange->ExchangePairs(own, {4}, bootstrap.rank() == 0 ? "keys" : "values"));
    EXPECT_THAT(pending.Wait().status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("identities")));
    return BootstrapBarrier(bootstrap);
  });
}

}  // namespace
}  // namespace weft::testing
