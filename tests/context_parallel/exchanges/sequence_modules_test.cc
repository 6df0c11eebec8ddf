#include "weft/context_parallel/sequence_modules.h"

#include <cstring>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/layout_tokens.h"
#include "tests/context_parallel/support/sequence_module_sweep.h"
#include "tests/context_parallel/support/split_model.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Makes an exchange over all ranks and runs `body` with it.
void WithExchange(const NodeMap& nodes, absl::FunctionRef<absl::Status(SequenceExchange&)> body) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceExchange> exchange,
                          SequenceExchange::Create(*fixture.engine, *fixture.pool, WorldGroup(bootstrap)));
    WEFT_RETURN_IF_ERROR(body(*exchange));
    return BootstrapBarrier(bootstrap);
  });
}

class SequenceModulesRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SequenceModulesRanks, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(SequenceModulesRanks, SplitAndGatherTensorsAndGradients) {
  RunRanksOnEveryNodeMap(GetParam(), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    return SweepSequenceModules(fixture);
  });
}

TEST(SequenceModules, SplitTokensOfAnyDtype) {
  WithExchange(NodeMap::OneNode(3), [](SequenceExchange& exchange) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout, SequenceLayout::HeadTail(11, 3));
    SplitSequence split("split", exchange);
    split.SetLayout(std::make_shared<SequenceLayout>(layout));
    const Tensor ids = Tensor::Zeros(DType::kI32, {2, 11});
    for (int32_t i = 0; i < 22; ++i) ids.As<int32_t>()[i] = i % 11;
    Invocation invocation;
    WEFT_ASSIGN_OR_RETURN(const Tensors parts, split.Forward(invocation, {ids}));
    EXPECT_EQ(parts[0].shape(), (Shape{2, layout.TokensOf(exchange.rank())}));
    const std::vector<int64_t> tokens = TokensOfRank(layout, exchange.rank());
    for (size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(parts[0].As<int32_t>()[i], tokens[i]);
    return absl::OkStatus();
  });
}

// A region of a model: y = gather(f(split(x))). Weight gradients are summed over the ranks.
TEST(SequenceModules, LeaveTheGradientsOfAModelUnchanged) {
  WithExchange(NodeMap::RanksPerNode(3, 2), [](SequenceExchange& exchange) -> absl::Status {
    const Tensor x = SomeTensor(2, 11, 4, 1);
    const Tensor dy = SomeTensor(2, 11, 4, 2);
    for (const SequenceOrder order : {SequenceOrder::kContiguous, SequenceOrder::kHeadTail}) {
      Linear linear("linear", 4, 4, {Initializer::Kind::kNormal, 0.0F, 0.5F});
      MaterializedParameters parameters(linear, 7, DType::kF32, DType::kF32);
      Invocation whole;
      WEFT_ASSIGN_OR_RETURN(const Tensors expected, linear.Forward(whole, {x}));
      WEFT_ASSIGN_OR_RETURN(const Tensors expected_gradient, linear.Backward(whole, {dy}));
      parameters.ClearGradients();

      WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                            SequenceLayout::Create({5, 6}, {.outer = 3, .order = order}));
      SplitSequence split("split", exchange);
      GatherSequence gather("gather", exchange);
      split.SetLayout(std::make_shared<SequenceLayout>(layout));
      gather.SetLayout(std::make_shared<SequenceLayout>(layout));
      Invocation invocation;
      WEFT_ASSIGN_OR_RETURN(const Tensors part, split.Forward(invocation, {x}));
      WEFT_ASSIGN_OR_RETURN(const Tensors mapped, linear.Forward(invocation, part));
      WEFT_ASSIGN_OR_RETURN(const Tensors y, gather.Forward(invocation, mapped));
      WEFT_ASSIGN_OR_RETURN(const Tensors dpart, gather.Backward(invocation, {dy}));
      WEFT_ASSIGN_OR_RETURN(const Tensors dmapped, linear.Backward(invocation, dpart));
      WEFT_ASSIGN_OR_RETURN(const Tensors dx, split.Backward(invocation, dmapped));
      WEFT_RETURN_IF_ERROR(CheckClose("outputs", y[0], expected[0]));
      WEFT_RETURN_IF_ERROR(CheckClose("input gradients", dx[0], expected_gradient[0]));
    }
    return absl::OkStatus();
  });
}

TEST(SequenceModules, NameWhatDoesNotFit) {
  WithExchange(NodeMap::OneNode(2), [](SequenceExchange& exchange) -> absl::Status {
    SplitSequence split("enter", exchange);
    GatherSequence gather("leave", exchange);
    Invocation invocation;
    const Tensor x = Tensor::Zeros(DType::kF32, {2, 6, 3});
    EXPECT_THAT(split.Forward(invocation, {x}).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("enter"), HasSubstr("call SetLayout"))));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout three, SequenceLayout::Contiguous(6, 3));
    gather.SetLayout(std::make_shared<SequenceLayout>(three));
    EXPECT_THAT(gather.Forward(invocation, {x}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("leave"), HasSubstr("for 3 ranks, but the group has 2"))));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout longer, SequenceLayout::HeadTail(8, 2));
    split.SetLayout(std::make_shared<SequenceLayout>(longer));
    gather.SetLayout(std::make_shared<SequenceLayout>(longer));
    EXPECT_THAT(split.Forward(invocation, {x}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the layout splits 8")));
    EXPECT_THAT(gather.Forward(invocation, {x}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds 4")));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
