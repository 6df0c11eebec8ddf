// Dense attention of a split sequence with an arbitrary mask for each row of the batch.
#include <gtest/gtest.h>

#include "tests/context_parallel/support/split_model.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

// Documents whose borders differ from row to row, and in row 1 also pairs without a pattern. Query 5 of row 1
// attends to nothing.
bool IsVisible(int64_t row, int64_t query, int64_t key) {
  const auto document = [row](int64_t position) { return (position + 3 * row) / (5 + row); };
  if (document(query) != document(key)) return false;
  return row == 0 || (query != 5 && (query * query + 3 * key) % 4 != 0);
}

ToyBlockOptions MaskedOptions() {
  ToyBlockOptions options;
  options.attentions = {AttentionMask{}, AttentionMask{.causal = false, .keys_before = std::nullopt}};
  options.pair_mask = std::make_shared<const PairMask>(IsVisible);
  return options;
}

// Balances of work assume that every attention is causal.
std::vector<ContextScheme> SchemesForAnyMask(int ranks) {
  std::vector<ContextScheme> schemes;
  for (const ContextScheme& scheme : SchemesFor(ranks)) {
    if (scheme.Validate(ranks, AttentionMask{.causal = false, .keys_before = std::nullopt}).ok()) {
      schemes.push_back(scheme);
    }
  }
  return schemes;
}

class PairMaskRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PairMaskRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(PairMaskRanks, ComputesWhatOneRankDoesInEveryScheme) {
  RunRanksOnEveryNodeMap(GetParam(), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions causal = MaskedOptions();
    causal.attentions.pop_back();
    for (const ContextScheme& scheme : SchemesFor(bootstrap.size())) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, causal, 2, kTokens));
    }
    for (const ContextScheme& scheme : SchemesForAnyMask(bootstrap.size())) {
      WEFT_RETURN_IF_ERROR(CheckAgainstOneRank(bootstrap, scheme, MaskedOptions(), 2, kTokens));
    }
    return absl::OkStatus();
  });
}

TEST(PairMask, GivesTheSameBitsWhereverExchangesAreLaunched) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    ToyBlockOptions options = MaskedOptions();
    const Pair pair;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      options.dtype = dtype;
      for (const ContextScheme& scheme : SchemesForAnyMask(bootstrap.size())) {
        const auto pass = [&](const AttentionNeighbors& neighbors, SplitModel& split) {
          const absl::Status done = split.Parallelize(neighbors);
          return done.ok() ? split.Pass(pair.x, pair.dy) : absl::StatusOr<PassResult>(done);
        };
        WEFT_ASSIGN_OR_RETURN(const auto early, SplitModel::Make(bootstrap, scheme, options));
        WEFT_ASSIGN_OR_RETURN(const auto late, SplitModel::Make(bootstrap, scheme, options));
        WEFT_ASSIGN_OR_RETURN(const PassResult launched, pass(early->model().block().Neighbors(), *early));
        WEFT_ASSIGN_OR_RETURN(const PassResult in_place, pass({}, *late));
        EXPECT_GT(early->context().counters().launched_by_sources, 0);
        EXPECT_EQ(late->context().counters().launched_by_sources, 0);
        EXPECT_TRUE(SameBits(launched, in_place)) << scheme.Describe(bootstrap.size()) << Name(dtype);
        WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
