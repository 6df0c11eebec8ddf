// Error messages of split models, and recovery after errors.
#include <memory>
#include <stdexcept>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/split_model.h"
#include "tests/support/thread_ranks.h"
#include "weft/nn/linear.h"
#include "weft/nn/rope.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A rank fails while its exchanges are in flight: its peers fail too, its memory is released, and after a
// reset the results are as before.
TEST(ContextParallelErrors, RecoversFromAnErrorBetweenLaunchAndWait) {
  for (const bool throws : {false, true}) {
    RunRanks(NodeMap::RanksPerNode(3, 2), [throws](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
      WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
      const Pair pair;
      WEFT_ASSIGN_OR_RETURN(const PassResult before, split->Pass(pair.x, pair.dy));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      ToyBlock& block = split->model().block();
      if (bootstrap.rank() == 1) {
        block.SetBetween([throws](Invocation&, const Tensors&) -> absl::Status {
          if (throws) throw std::runtime_error("out of ideas");
          return absl::DataLossError("out of ideas");
        });
      }
      absl::Status failed;
      try {
        failed = split->Pass(pair.x, pair.dy).status();
      } catch (const std::runtime_error& error) {
        failed = absl::DataLossError(error.what());
      }
      EXPECT_FALSE(failed.ok());
      const bool thrown_elsewhere = throws && bootstrap.rank() != 1;
      EXPECT_THAT(failed.message(),
                  HasSubstr(thrown_elsewhere ? "rank 1: an exception escaped" : "out of ideas"));
      EXPECT_FALSE(split->fixture().engine->status().ok());
      block.SetBetween({});
      WEFT_RETURN_IF_ERROR(split->fixture().engine->ResetAfterError());
      EXPECT_EQ(split->context().buffer_bytes(), 0);
      split->model().TakeWeightGradients();
      WEFT_ASSIGN_OR_RETURN(const PassResult after, split->Pass(pair.x, pair.dy));
      EXPECT_TRUE(SameBits(before, after));
      return BootstrapBarrier(bootstrap);
    });
  }
}

TEST(ContextParallelErrors, NamesWhatAPassLacks) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const auto error_of = [&](std::shared_ptr<const SequenceParts> sequence, int64_t tokens) {
      const auto split = SplitModel::Make(bootstrap, {}, {});
      EXPECT_OK(split.status());
      EXPECT_OK(SplitFromSources(**split));
      const Tensor x = SomeTensor(1, tokens, 16, 1);
      return (*split)->model().Pass(std::move(sequence), x, x).status();
    };
    EXPECT_THAT(error_of(nullptr, 8),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("block.attention.0"), HasSubstr("SetSequence"))));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout three, SequenceLayout::Contiguous(12, 3));
    EXPECT_THAT(error_of(three.Parts(bootstrap.rank()), 4),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("3 parts")));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout two, SequenceLayout::Contiguous(12, 2));
    EXPECT_THAT(
        error_of(two.Parts(bootstrap.rank()), 12),
        StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("12 tokens"), HasSubstr("has 6"))));
    return absl::OkStatus();
  });
}

TEST(ContextParallelErrors, RefusesArgumentsThatDoNotFit) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    ToyModel model({});
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"outer", 1}, {"inner", 4}}, 4));
    const ContextScheme hybrid{.ulysses_degree = 2};
    const auto create = [&](absl::Span<const std::string_view> axes, const ContextScheme& scheme) {
      return ContextParallel::Create(*fixture.engine, model.block(), mesh, axes, scheme).status();
    };
    EXPECT_THAT(
        create({"outer", "inner"}, hybrid),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 4 ranks, but the Ulysses degree is 2")));
    EXPECT_THAT(create({}, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one axis")));
    WEFT_ASSIGN_OR_RETURN(const auto flattened, ContextParallel::Create(*fixture.engine, model.block(), mesh,
                                                                        {"outer", "inner"}, {}));
    EXPECT_EQ(flattened->group().size(), 4);

    Attention& attention = *model.block().attentions()[0];
    AttentionNeighbors neighbors = model.block().Neighbors();
    neighbors.kv_heads = 3;
    EXPECT_THAT(flattened->Parallelize(attention, neighbors),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 heads and 3")));
    neighbors.heads = 0;
    EXPECT_THAT(flattened->Parallelize(attention, neighbors),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 heads")));
    WEFT_RETURN_IF_ERROR(flattened->Parallelize(attention));
    EXPECT_THAT(flattened->Parallelize(attention),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split already")));

    const ContextScheme balanced = ContextScheme::Gather(LoadBalance::kHeadTail);
    WEFT_ASSIGN_OR_RETURN(const auto context, ContextParallel::Create(*fixture.engine, model.block(), mesh,
                                                                      {"outer", "inner"}, balanced));
    AttentionOptions everything;
    everything.mask.causal = false;
    Attention full("full", everything);
    EXPECT_THAT(context->Parallelize(full),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("full"), HasSubstr("causal"))));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(ContextParallelErrors, DetectsASourceWhoseOutputTheAttentionDoesNotTake) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    AttentionNeighbors neighbors = split->model().block().Neighbors();
    neighbors.key.output = 2;  // The output of the values.
    WEFT_RETURN_IF_ERROR(split->Parallelize(neighbors));
    const Pair pair;
    EXPECT_THAT(split->Pass(pair.x, pair.dy).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("took another tensor")));
    return absl::OkStatus();
  });
}

TEST(ContextParallelErrors, RefusesToOverwriteASourceOutputBeforeTheAttention) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
    Rope rope("rope", std::make_shared<RopeTable>(RopeFrequencies(8, 10000.0, std::nullopt)));
    split->model().block().SetBetween([&rope](Invocation& invocation, const Tensors& qkv) {
      return rope.Forward(invocation, {qkv[0]}).status();
    });
    const Pair pair;
    EXPECT_THAT(
        split->Pass(pair.x, pair.dy).status(),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rope would overwrite an output of")));
    return BootstrapBarrier(bootstrap);
  });
}

absl::StatusOr<std::unique_ptr<ContextParallel>> ContextOver(SplitModel& split) {
  const int ranks = split.bootstrap().size();
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"context", ranks}}, ranks));
  return ContextParallel::Create(*split.fixture().engine, split.model().block(), mesh, {"context"}, {});
}

TEST(ContextParallelErrors, RefusesAnAttentionThatAnotherContextHasSplit) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
    const Pair pair;
    WEFT_ASSIGN_OR_RETURN(const PassResult before, split->Pass(pair.x, pair.dy));
    {
      WEFT_ASSIGN_OR_RETURN(const auto other, ContextOver(*split));
      ToyBlock& block = split->model().block();
      EXPECT_THAT(
          other->Parallelize(*block.attentions()[0], block.Neighbors()),
          StatusIs(absl::StatusCode::kInvalidArgument,
                   AllOf(HasSubstr("block.attention.0"), HasSubstr("destroy the other ContextParallel"))));
    }
    WEFT_ASSIGN_OR_RETURN(const PassResult after, split->Pass(pair.x, pair.dy));
    EXPECT_TRUE(SameBits(before, after));
    return BootstrapBarrier(bootstrap);
  });
}

class OtherOperator final : public AttentionOperator {
 public:
  absl::StatusOr<Tensors> Forward(Invocation&, const Attention&, const Tensors& inputs) override {
    return inputs;
  }
  absl::StatusOr<Tensors> Backward(Invocation&, const Attention&, const Tensors& gradients) override {
    return gradients;
  }
};

TEST(ContextParallelErrors, LeavesWhatOthersHaveSetWhenDestroyed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    Attention replaced("replaced");
    Attention removed("removed");
    Linear consumer("consumer", 4, 4);
    Linear source("source", 4, 12);
    const auto heap = [](DType dtype, Shape shape) { return Tensor::Empty(dtype, std::move(shape)); };
    consumer.SetResultAllocators({.outputs = heap, .input_gradients = {}});
    WEFT_ASSIGN_OR_RETURN(auto context, ContextOver(*split));
    AttentionNeighbors neighbors;
    neighbors.heads = 2;
    neighbors.kv_heads = 2;
    neighbors.query = {&source};
    neighbors.consumer = &consumer;
    WEFT_RETURN_IF_ERROR(context->Parallelize(replaced, neighbors));
    WEFT_RETURN_IF_ERROR(context->Parallelize(removed));
    const auto other = std::make_shared<OtherOperator>();
    replaced.SetOperator(other);
    source.SetResultAllocators({.outputs = heap, .input_gradients = {}});
    context.reset();
    EXPECT_EQ(replaced.attention_operator(), other.get());
    EXPECT_EQ(removed.attention_operator(), nullptr);
    for (const Module* module : {&source, &consumer}) {
      EXPECT_TRUE(module->result_allocators().outputs) << module->name();
      EXPECT_FALSE(module->result_allocators().input_gradients) << module->name();
    }
    return BootstrapBarrier(bootstrap);
  });
}

// The operator of another context may have the address of a destroyed one.
TEST(ContextParallelErrors, LeavesTheOperatorOfAnotherContextWhenDestroyed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    Attention attention("attention");
    WEFT_ASSIGN_OR_RETURN(auto first, ContextOver(*split));
    WEFT_ASSIGN_OR_RETURN(const auto second, ContextOver(*split));
    WEFT_RETURN_IF_ERROR(first->Parallelize(attention));
    attention.SetOperator(nullptr);
    WEFT_RETURN_IF_ERROR(second->Parallelize(attention));
    const auto* const of_second = attention.attention_operator();
    EXPECT_NE(of_second, nullptr);
    first.reset();
    EXPECT_EQ(attention.attention_operator(), of_second);
    return BootstrapBarrier(bootstrap);
  });
}

}  // namespace
}  // namespace weft::testing
