#include "weft/context_parallel/context_parallel.h"

#include <gtest/gtest.h>

#include "tests/context_parallel/support/split_model.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using Projections = ToyBlockOptions::Projections;

// Runs `prepare` and the same pass on every rank.
absl::StatusOr<PassResult> PassWith(Bootstrap& bootstrap, const ContextScheme& scheme,
                                    const ToyBlockOptions& options,
                                    absl::FunctionRef<absl::Status(SplitModel&)> prepare) {
  WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, scheme, options));
  WEFT_RETURN_IF_ERROR(prepare(*split));
  const Pair pair;
  WEFT_ASSIGN_OR_RETURN(PassResult result, split->Pass(pair.x, pair.dy));
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
  return result;
}

class ContextParallelRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ContextParallelRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(ContextParallelRanks, ComputesWhatOneRankDoesInEveryScheme) {
  RunRanksOnEveryNodeMap(GetParam(), [](Bootstrap& bootstrap) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, {}, 2, kTokens));
    }
    return absl::OkStatus();
  });
}

TEST_P(ContextParallelRanks, TakesInputsFromEveryKindOfProjectionInEitherLayout) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions options;
    options.value_dim = 12;
    for (const AttentionLayout layout : {AttentionLayout::kBshd, AttentionLayout::kBhsd}) {
      for (const Projections projections :
           {Projections::kOneEach, Projections::kThreeOutputs, Projections::kOneOutput}) {
        options.layout = layout;
        options.projections = projections;
        WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, {}, options, 2, kTokens));
        WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, ContextScheme::Gather(), options, 2, kTokens));
      }
    }
    return absl::OkStatus();
  });
}

// A gradient that replaced the present one instead of adding to it would lose one attention's part.
TEST_P(ContextParallelRanks, AddsTheGradientsOfAllAttentionsOfASource) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions options;
    options.attentions = {AttentionMask{}, AttentionMask{true, 3}, AttentionMask{true, 7}};
    for (const ContextScheme& scheme : {ContextScheme{}, ContextScheme::Gather()}) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, options, 2, kTokens));
    }
    return absl::OkStatus();
  });
}

TEST_P(ContextParallelRanks, SeparatesTheCallsOfOneInvocation) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    for (const ContextScheme& scheme : {ContextScheme{}, ContextScheme::Gather()}) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, {}, 1, kTokens, /*calls=*/3));
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, GivesTheSameBitsWhereverExchangesAreLaunched) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions options;
    options.attentions = {AttentionMask{}, AttentionMask{true, 3}, AttentionMask{true, 7}};
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      options.dtype = dtype;
      for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
        WEFT_ASSIGN_OR_RETURN(const PassResult early, PassWith(bootstrap, scheme, options, SplitFromSources));
        WEFT_ASSIGN_OR_RETURN(
            const PassResult in_place,
            PassWith(bootstrap, scheme, options, [](SplitModel& split) { return split.Parallelize({}); }));
        EXPECT_TRUE(SameBits(early, in_place)) << scheme.Describe(bootstrap.size()) << Name(dtype);
      }
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, HonorsTheScaleAndReturnsTheLseOfTheAttention) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions options;
    options.scale = 1.5F;
    options.returns_lse = true;
    for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, options, 2, kTokens));
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, LaunchesInTheAttentionIfNoSourceDoes) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    AttentionNeighbors neighbors = split->model().block().Neighbors();
    neighbors.key = {};                     // Unknown.
    neighbors.value.output = std::nullopt;  // The module has three outputs.
    WEFT_RETURN_IF_ERROR(split->Parallelize(neighbors));
    const Pair pair;
    WEFT_RETURN_IF_ERROR(split->Pass(pair.x, pair.dy).status());
    EXPECT_EQ(split->context().counters().launched_by_sources, 1);
    EXPECT_EQ(split->context().counters().launched_by_attentions, 2);
    return absl::OkStatus();
  });
}

TEST(ContextParallel, CopiesNothingInNodeMemory) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
      WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, scheme, {}));
      WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
      const Pair pair;
      WEFT_RETURN_IF_ERROR(split->Pass(pair.x, pair.dy).status());
      EXPECT_EQ(split->fixture().engine->counters().copied_bytes, 0) << scheme.Describe(bootstrap.size());
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, SeparatesMicrobatchesInFlight) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
    const SequenceLayout layout = split->Layout(kTokens);
    const auto part = [&](uint64_t salt) {
      return PartOf(SomeTensor(2, kTokens, 16, salt), layout, bootstrap.rank());
    };
    return CheckMicrobatchesInFlight(split->model(), layout.Parts(bootstrap.rank()), part);
  });
}

TEST(ContextParallel, GivesTheSameBitsWithRecomputedActivations) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
      WEFT_ASSIGN_OR_RETURN(const PassResult kept, PassWith(bootstrap, scheme, {}, SplitFromSources));
      WEFT_ASSIGN_OR_RETURN(const PassResult block, PassWith(bootstrap, scheme, {}, [](SplitModel& split) {
                              split.model().block().SetActivationCheckpointing(true);
                              return SplitFromSources(split);
                            }));
      // Recomputes the sources alone: no attention consumes what they launch again.
      WEFT_ASSIGN_OR_RETURN(const PassResult sources, PassWith(bootstrap, scheme, {}, [](SplitModel& split) {
                              split.model().block().projections().SetActivationCheckpointing(true);
                              return SplitFromSources(split);
                            }));
      // Does not recompute the sources: the attention launches its inputs itself.
      WEFT_ASSIGN_OR_RETURN(const PassResult attention,
                            PassWith(bootstrap, scheme, {}, [](SplitModel& split) {
                              split.model().block().attentions()[0]->SetActivationCheckpointing(true);
                              return SplitFromSources(split);
                            }));
      EXPECT_TRUE(SameBits(kept, block)) << scheme.Describe(bootstrap.size());
      EXPECT_TRUE(SameBits(kept, sources)) << scheme.Describe(bootstrap.size());
      EXPECT_TRUE(SameBits(kept, attention)) << scheme.Describe(bootstrap.size());
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, HoldsNoMemoryAfterAPassWithoutABackward) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
    const SequenceLayout layout = split->Layout(kTokens);
    {
      Invocation invocation(/*gradients=*/false);
      invocation.SetSequence(layout.Parts(bootstrap.rank()));
      WEFT_RETURN_IF_ERROR(
          split->model().Forward(invocation, PartOf(Pair().x, layout, bootstrap.rank())).status());
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(CheckEngineWorks(split->fixture()));
    EXPECT_EQ(split->context().buffer_bytes(), 0);
    return absl::OkStatus();
  });
}

TEST(ContextParallel, SplitsOverTwoAxesOfAMesh) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"outer", 2}, {"inner", 2}}, 4));
    const Pair pair;
    WEFT_ASSIGN_OR_RETURN(const PassResult expected, ToyModel({}).Pass(nullptr, pair.x, pair.dy));
    for (const ContextScheme& scheme : SchemesFor(4)) {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
      ToyModel model({});
      WEFT_ASSIGN_OR_RETURN(const auto context, ContextParallel::Create(*fixture.engine, model.block(), mesh,
                                                                        {"outer", "inner"}, scheme));
      WEFT_RETURN_IF_ERROR(context->Parallelize(*model.block().attentions()[0], model.block().Neighbors()));
      WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout, SequenceLayout::Create({kTokens}, scheme.Split(4)));
      const int rank = context->group().group_rank;
      WEFT_ASSIGN_OR_RETURN(
          const PassResult result,
          model.Pass(layout.Parts(rank), PartOf(pair.x, layout, rank), PartOf(pair.dy, layout, rank)));
      WEFT_RETURN_IF_ERROR(CheckClose("outputs", result.y, PartOf(expected.y, layout, rank)));
      WEFT_RETURN_IF_ERROR(CheckClose("input gradients", result.dx, PartOf(expected.dx, layout, rank)));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, RestoresTheAttentionsWhenDestroyed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const Pair pair;
    ToyModel model({});
    WEFT_ASSIGN_OR_RETURN(const PassResult before, model.Pass(nullptr, pair.x, pair.dy));
    {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"context", 2}}, 2));
      WEFT_ASSIGN_OR_RETURN(const auto context,
                            ContextParallel::Create(*fixture.engine, model.block(), mesh, {"context"}, {}));
      WEFT_RETURN_IF_ERROR(context->Parallelize(*model.block().attentions()[0], model.block().Neighbors()));
    }
    WEFT_ASSIGN_OR_RETURN(const PassResult after, model.Pass(nullptr, pair.x, pair.dy));
    EXPECT_TRUE(SameBits(before, after));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
