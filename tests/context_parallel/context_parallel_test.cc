#include "weft/context_parallel/context_parallel.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/split_model.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Projections = ToyBlockOptions::Projections;

constexpr int64_t kTokens = 23;

ContextScheme Gather() {
  ContextScheme scheme;
  scheme.kind = SchemeKind::kGatherKv;
  return scheme;
}

struct Pair {
  Tensor x = SomeTensor(2, kTokens, 16, 1);
  Tensor dy = SomeTensor(2, kTokens, 16, 2);
};

// The same pass on every rank, after `prepare`.
absl::StatusOr<PassResult> PassWith(Bootstrap& bootstrap, const ContextScheme& scheme,
                                    const ToyBlockOptions& options,
                                    absl::FunctionRef<absl::Status(SplitModel&)> prepare) {
  WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, scheme, options));
  WEFT_RETURN_IF_ERROR(prepare(*split));
  const Pair pair;
  WEFT_ASSIGN_OR_RETURN(PassResult result, split->Pass(pair.x, pair.dy));
  WEFT_RETURN_IF_ERROR(Meet(bootstrap));
  return result;
}

absl::Status SplitFromSources(SplitModel& split) {
  return split.Parallelize(split.model().block().Neighbours());
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
        WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, Gather(), options, 2, kTokens));
      }
    }
    return absl::OkStatus();
  });
}

// A gradient that replaced what is there, instead of adding to it, would lose an attention's part.
TEST_P(ContextParallelRanks, AddsTheGradientsOfAllAttentionsThatASourceFeeds) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions options;
    options.attentions = {AttentionMask{}, AttentionMask{true, 3}, AttentionMask{true, 7}};
    for (const ContextScheme& scheme : {ContextScheme{}, Gather()}) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, options, 2, kTokens));
    }
    return absl::OkStatus();
  });
}

TEST_P(ContextParallelRanks, KeepsTheCallsOfOneInvocationApart) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    for (const ContextScheme& scheme : {ContextScheme{}, Gather()}) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, {}, 1, kTokens, /*calls=*/3));
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, GivesTheSameBitsWhereverExchangesAreLaunched) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
      WEFT_ASSIGN_OR_RETURN(const PassResult a, PassWith(bootstrap, scheme, {}, SplitFromSources));
      WEFT_ASSIGN_OR_RETURN(const PassResult b, PassWith(bootstrap, scheme, {}, [](SplitModel& split) {
                              return split.Parallelize({});
                            }));
      EXPECT_TRUE(SameBits(a, b)) << scheme.Describe(bootstrap.size());
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, LaunchesInPlaceWhatNoSourceDoes) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    AttentionNeighbours neighbours = split->model().block().Neighbours();
    neighbours.key = {};                     // Unknown.
    neighbours.value.output = std::nullopt;  // One of three, but which is not said.
    WEFT_RETURN_IF_ERROR(split->Parallelize(neighbours));
    const Pair pair;
    WEFT_RETURN_IF_ERROR(split->Pass(pair.x, pair.dy).status());
    EXPECT_EQ(split->context().counters().by_sources, 1);
    EXPECT_EQ(split->context().counters().in_place, 2);
    return absl::OkStatus();
  });
}

TEST(ContextParallel, CopiesNothingThatLiesInNodeMemory) {
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

TEST(ContextParallel, KeepsMicrobatchesInFlightApart) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
    const SequenceLayout layout = split->Layout(kTokens);
    const auto part = [&](uint64_t salt) {
      return PartOf(SomeTensor(2, kTokens, 16, salt), layout, bootstrap.rank());
    };
    const auto parts = layout.Parts(bootstrap.rank());
    ToyModel& model = split->model();
    WEFT_ASSIGN_OR_RETURN(const PassResult first, model.Pass(parts, part(1), part(2)));
    WEFT_ASSIGN_OR_RETURN(const PassResult second, model.Pass(parts, part(3), part(4)));
    Invocation a;
    Invocation b;
    a.SetSequence(parts);
    b.SetSequence(parts);
    PassResult mixed_a;
    PassResult mixed_b;
    WEFT_ASSIGN_OR_RETURN(mixed_a.y, model.Forward(a, part(1)));
    WEFT_ASSIGN_OR_RETURN(mixed_b.y, model.Forward(b, part(3)));
    WEFT_ASSIGN_OR_RETURN(mixed_a.dx, model.Backward(a, part(2)));
    mixed_a.weight_gradients = model.TakeWeightGradients();
    WEFT_ASSIGN_OR_RETURN(mixed_b.dx, model.Backward(b, part(4)));
    mixed_b.weight_gradients = model.TakeWeightGradients();
    EXPECT_TRUE(SameBits(mixed_a, first));
    EXPECT_TRUE(SameBits(mixed_b, second));
    return absl::OkStatus();
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
      // The sources are not run again: attention launches in place what it is recomputed from.
      WEFT_ASSIGN_OR_RETURN(const PassResult attention,
                            PassWith(bootstrap, scheme, {}, [](SplitModel& split) {
                              split.model().block().attentions()[0]->SetActivationCheckpointing(true);
                              return SplitFromSources(split);
                            }));
      EXPECT_TRUE(SameBits(kept, block)) << scheme.Describe(bootstrap.size());
      EXPECT_TRUE(SameBits(kept, attention)) << scheme.Describe(bootstrap.size());
    }
    return absl::OkStatus();
  });
}

TEST(ContextParallel, LeavesNothingBehindWithoutABackward) {
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
    WEFT_RETURN_IF_ERROR(Meet(bootstrap));
    WEFT_RETURN_IF_ERROR(CheckThatItWorks(split->fixture()));
    EXPECT_EQ(split->context().buffer_bytes(), 0);
    return absl::OkStatus();
  });
}

// A rank that fails while its exchanges are under way: the others learn of it, what it held is given back,
// and after a reset all is as before.
TEST(ContextParallel, RecoversFromAnErrorBetweenLaunchAndWait) {
  for (const bool throws : {false, true}) {
    RunRanks(NodeMap::RanksPerNode(3, 2), [throws](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
      WEFT_RETURN_IF_ERROR(SplitFromSources(*split));
      const Pair pair;
      WEFT_ASSIGN_OR_RETURN(const PassResult before, split->Pass(pair.x, pair.dy));
      WEFT_RETURN_IF_ERROR(Meet(bootstrap));
      ToyBlock& block = split->model().block();
      if (bootstrap.rank() == 1) {
        block.SetBetween([throws]() -> absl::Status {
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
                  HasSubstr(thrown_elsewhere ? "rank 1: an exception left" : "out of ideas"));
      EXPECT_FALSE(split->fixture().engine->status().ok());
      block.SetBetween({});
      WEFT_RETURN_IF_ERROR(split->fixture().engine->ResetAfterError());
      EXPECT_EQ(split->context().buffer_bytes(), 0);
      split->model().TakeWeightGradients();
      WEFT_ASSIGN_OR_RETURN(const PassResult after, split->Pass(pair.x, pair.dy));
      EXPECT_TRUE(SameBits(before, after));
      return Meet(bootstrap);
    });
  }
}

TEST(ContextParallel, SaysWhatAPassLacks) {
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

TEST(ContextParallel, RefusesWhatDoesNotFit) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    ToyModel model({});
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"outer", 1}, {"inner", 4}}, 4));
    ContextScheme hybrid;
    hybrid.kind = SchemeKind::kHybrid;
    hybrid.ulysses_degree = 2;
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
    AttentionNeighbours neighbours = model.block().Neighbours();
    neighbours.kv_heads = 3;
    EXPECT_THAT(flattened->Parallelize(attention, neighbours),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 heads and 3")));
    WEFT_RETURN_IF_ERROR(flattened->Parallelize(attention));
    EXPECT_THAT(flattened->Parallelize(attention),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split already")));

    ContextScheme balanced = Gather();
    balanced.balance = LoadBalance::kHeadTail;
    WEFT_ASSIGN_OR_RETURN(const auto context, ContextParallel::Create(*fixture.engine, model.block(), mesh,
                                                                      {"outer", "inner"}, balanced));
    AttentionOptions everything;
    everything.mask.causal = false;
    Attention full("full", everything);
    EXPECT_THAT(context->Parallelize(full),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("full"), HasSubstr("causal"))));
    return Meet(bootstrap);
  });
}

TEST(ContextParallel, NoticesASourceWhoseOutputAttentionDoesNotTake) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitModel::Make(bootstrap, {}, {}));
    AttentionNeighbours neighbours = split->model().block().Neighbours();
    neighbours.key.output = 2;  // That is the values.
    WEFT_RETURN_IF_ERROR(split->Parallelize(neighbours));
    const Pair pair;
    EXPECT_THAT(split->Pass(pair.x, pair.dy).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("took another tensor")));
    return absl::OkStatus();
  });
}

TEST(ContextParallel, LetsAttentionBeAloneAgainWhenItGoes) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const Pair pair;
    ToyModel model({});
    WEFT_ASSIGN_OR_RETURN(const PassResult before, model.Pass(nullptr, pair.x, pair.dy));
    {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"context", 2}}, 2));
      WEFT_ASSIGN_OR_RETURN(const auto context,
                            ContextParallel::Create(*fixture.engine, model.block(), mesh, {"context"}, {}));
      WEFT_RETURN_IF_ERROR(context->Parallelize(*model.block().attentions()[0], model.block().Neighbours()));
    }
    WEFT_ASSIGN_OR_RETURN(const PassResult after, model.Pass(nullptr, pair.x, pair.dy));
    EXPECT_TRUE(SameBits(before, after));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
