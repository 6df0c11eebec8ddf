// Sparse attention over a sequence that is split across ranks.
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/sparse_llama.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr LoadBalance kBalances[] = {LoadBalance::kNone, LoadBalance::kHeadTail};

class SparseContextRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SparseContextRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(SparseContextRanks, ComputesWhatOneRankDoes) {
  RunRanksOnEveryNodeMap(GetParam(), [](Bootstrap& bootstrap) -> absl::Status {
    for (const LoadBalance balance : kBalances) {
      WEFT_RETURN_IF_ERROR(CheckSparseAgainstOneRank(bootstrap, {.balance = balance}));
    }
    return absl::OkStatus();
  });
}

// Documents that are shorter than the number of ranks leave ranks without a part of them, or without tokens.
TEST_P(SparseContextRanks, ComputesWhatOneRankDoesWithPackedDocuments) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    for (const LoadBalance balance : kBalances) {
      for (const int64_t batch : {1, 3}) {
        WEFT_RETURN_IF_ERROR(CheckSparseAgainstOneRank(
            bootstrap, {.documents = {1, 9, 2, 14}, .balance = balance, .batch = batch}));
      }
    }
    return CheckSparseAgainstOneRank(bootstrap, {.documents = {3}});
  });
}

TEST_P(SparseContextRanks, SelectsTheKeysOfOneRank) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) -> absl::Status {
    for (const LoadBalance balance : kBalances) {
      WEFT_RETURN_IF_ERROR(CheckSparseAgainstOneRank(bootstrap, {.balance = balance, .top_k = 5}));
      WEFT_RETURN_IF_ERROR(
          CheckSparseAgainstOneRank(bootstrap, {.documents = {8, 15}, .balance = balance, .top_k = 3}));
    }
    return absl::OkStatus();
  });
}

TEST_P(SparseContextRanks, ComputesWhatOneRankDoesInTheWarmUp) {
  RunRanks(NodeMap::OneNode(GetParam()), [](Bootstrap& bootstrap) {
    return CheckSparseAgainstOneRank(bootstrap, {.top_k = 5, .warm_up = true});
  });
}

// Runs `prepare` and one pass on every rank.
absl::StatusOr<SparseResult> PassWith(
    Bootstrap& bootstrap, const SparseCase& sparse, bool has_sources,
    absl::FunctionRef<void(LlamaModel&)> prepare = [](LlamaModel&) {}) {
  WEFT_ASSIGN_OR_RETURN(const auto split, SplitSparseLlama::Make(bootstrap, sparse, has_sources));
  prepare(split->llama.model());
  WEFT_ASSIGN_OR_RETURN(SparseResult result, split->Pass());
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
  return result;
}

TEST(SparseContext, GivesTheSameBitsWhereverExchangesAreLaunched) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const SparseCase sparse{.top_k = 5, .dtype = dtype};
      WEFT_ASSIGN_OR_RETURN(const SparseResult early, PassWith(bootstrap, sparse, true));
      WEFT_ASSIGN_OR_RETURN(const SparseResult in_place, PassWith(bootstrap, sparse, false));
      EXPECT_TRUE(SameBits(early, in_place)) << Name(dtype);
    }
    return absl::OkStatus();
  });
}

TEST(SparseContext, GivesTheSameBitsWithRecomputedActivations) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    const SparseCase sparse{.top_k = 5};
    for (const bool has_sources : {false, true}) {
      WEFT_ASSIGN_OR_RETURN(const SparseResult kept, PassWith(bootstrap, sparse, has_sources));
      const auto checkpointed = [&](auto select) {
        return PassWith(bootstrap, sparse, has_sources, [&](LlamaModel& model) {
          for (DecoderBlock* block : model.blocks()) select(*block).SetActivationCheckpointing(true);
        });
      };
      WEFT_ASSIGN_OR_RETURN(const SparseResult block,
                            checkpointed([](DecoderBlock& all) -> Module& { return all; }));
      WEFT_ASSIGN_OR_RETURN(const SparseResult attention, checkpointed([](DecoderBlock& all) -> Module& {
                              return *all.self_attention().sparse_attention();
                            }));
      WEFT_ASSIGN_OR_RETURN(const SparseResult indexer, checkpointed([](DecoderBlock& all) -> Module& {
                              return *all.self_attention().indexer();
                            }));
      EXPECT_TRUE(SameBits(kept, block));
      EXPECT_TRUE(SameBits(kept, attention));
      EXPECT_TRUE(SameBits(kept, indexer));
    }
    return absl::OkStatus();
  });
}

// One all-gather and one reduce-scatter for each of k, v and index_k in each layer, from node memory.
TEST(SparseContext, MovesEachKeyTensorOnce) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const int64_t batch : {1, 2}) {
          const SparseCase sparse{.documents = {5, 20}, .batch = batch, .top_k = 5, .dtype = dtype};
          WEFT_ASSIGN_OR_RETURN(const auto split, SplitSparseLlama::Make(bootstrap, sparse));
          WEFT_RETURN_IF_ERROR(split->Pass().status());
          while (split->context->buffer_bytes() > 0) std::this_thread::yield();
          const EngineCounters counters = split->fixture.engine->counters();
          const auto layers = static_cast<int64_t>(split->llama.model().blocks().size());
          const ContextCosts costs = CostsOf(ContextScheme::Gather(sparse.balance), SparseShape(sparse),
                                             AttentionMask{}, split->layout, bootstrap.rank());
          EXPECT_EQ(counters.context_bytes, layers * costs.bytes());
          EXPECT_EQ(counters.operations, ranks == 1 ? 0 : layers * (3 + 3));
          EXPECT_EQ(counters.copied_bytes, 0);
          EXPECT_EQ(split->context->counters().launched_by_sources, ranks == 1 ? 0 : layers * 3);
          EXPECT_EQ(split->context->counters().launched_by_attentions, 0);
          WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(SparseContext, RefusesSchemesThatDoNotGather) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    SparseLlama llama({});
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"context", 4}}, 4));
    for (const ContextScheme& scheme : SchemesFor(4)) {
      if (scheme.kind(4) == SchemeKind::kGather && scheme.balance != LoadBalance::kQueryExchange) continue;
      WEFT_ASSIGN_OR_RETURN(const auto context, ContextParallel::Create(*fixture.engine, llama.model(), mesh,
                                                                        {"context"}, scheme));
      EXPECT_THAT(ParallelizeLlama(*context, llama.model()),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("model.layers.0.self_attn.attention"), HasSubstr("use gather"))));
    }
    WEFT_ASSIGN_OR_RETURN(const auto context, ContextParallel::Create(*fixture.engine, llama.model(), mesh,
                                                                      {"context"}, ContextScheme::Gather()));
    WEFT_RETURN_IF_ERROR(ParallelizeLlama(*context, llama.model()));
    EXPECT_THAT(ParallelizeLlama(*context, llama.model()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split already")));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(SparseContext, RefusesAnAttentionThatAnotherContextHasSplit) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto split, SplitSparseLlama::Make(bootstrap, {}));
    WEFT_ASSIGN_OR_RETURN(const SparseResult before, split->Pass());
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"context", 2}}, 2));
    WEFT_ASSIGN_OR_RETURN(auto next, ContextParallel::Create(*split->fixture.engine, split->llama.model(),
                                                             mesh, {"context"}, split->context->scheme()));
    EXPECT_THAT(
        ParallelizeLlama(*next, split->llama.model()),
        StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("model.layers.0.self_attn.attention"),
                                                           HasSubstr("destroy the other ContextParallel"))));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));  // The memory of the pass is in the other one's pool.
    split->context = std::move(next);
    WEFT_RETURN_IF_ERROR(ParallelizeLlama(*split->context, split->llama.model()));
    WEFT_ASSIGN_OR_RETURN(const SparseResult after, split->Pass());
    EXPECT_TRUE(SameBits(before, after));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(SparseContext, NeedsTheKeysOfAllRanks) {
  SparseLlama llama({});
  const auto layout = SequenceLayout::HeadTail(23, 2);
  ASSERT_OK(layout.status());
  EXPECT_THAT(llama.Pass(*layout, 0).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gather the keys of all ranks")));
}

}  // namespace
}  // namespace weft::testing
