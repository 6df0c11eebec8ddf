// Keys that sparse attention selects in training on several ranks, against those of one rank.
//
// Gradients are summed in another order there. Weights, and with them index scores, then round
// differently, and a query may select another key where two scores nearly tie. The tests count these
// queries.
#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/sparse_llama.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/status.h"
#include "weft/nn/sparse_attention_kernel.h"

namespace weft::testing {
namespace {

constexpr int kSteps = 20;
constexpr float kLearningRate = 0.3F;
const SparseCase kTraining{.documents = {192}, .batch = 2, .top_k = 24};

using Query = std::tuple<int, std::string, int64_t, int64_t>;  // Step, attention, row, position.
using Selections = std::map<Query, std::vector<int64_t>>;      // Positions of the selected keys.

TokenRuns RunsOfAllRanks(const SequenceParts& sequence) {
  TokenRuns all;
  for (const TokenRuns& part : sequence.parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Selects as the attention does, from its inputs.
void Record(const SparseAttention& attention, const SequenceParts& sequence, const Tensors& inputs, int step,
            Selections& selections) {
  const auto view = [&](SparseAttention::Input input) { return inputs[input].view(); };
  const TokenRuns key_runs = RunsOfAllRanks(sequence);
  const KeyBlock keys{view(SparseAttention::kK), view(SparseAttention::kV), &key_runs};
  const Tensor& index_k = inputs[SparseAttention::kIndexK];
  const Tensor index_keys = index_k.Reshape({index_k.dim(0), index_k.dim(1), index_k.dim(3)});
  const KeySelection selection =
      SelectKeys(attention.options().mask, attention.options().top_k,
                 {view(SparseAttention::kIndexQ), view(SparseAttention::kIndexWeights)}, sequence.runs(),
                 {&keys, 1}, {&index_keys.view(), 1});
  const std::vector<int64_t> query_positions = Positions(sequence.runs());
  const std::vector<int64_t> key_positions = Positions(key_runs);
  const auto queries = static_cast<int64_t>(query_positions.size());
  for (int64_t i = 0; i < selection.keys.dim(0) * queries; ++i) {
    const int32_t* key = selection.keys.As<int32_t>() + i * selection.width();
    std::vector<int64_t> positions;
    for (int32_t n = 0; n < selection.counts.As<int32_t>()[i]; ++n) {
      positions.push_back(key_positions[static_cast<size_t>(key[n])]);
    }
    std::sort(positions.begin(), positions.end());
    const int64_t position = query_positions[static_cast<size_t>(i % queries)];
    selections[{step, attention.name(), i / queries, position}] = std::move(positions);
  }
}

// Trains by gradient descent. `sum` adds gradients up over the ranks.
absl::StatusOr<Selections> Train(
    SparseLlama& llama, const SequenceLayout& layout, int rank,
    absl::FunctionRef<absl::StatusOr<std::vector<float>>(const std::vector<float>&)> sum) {
  Selections selections;
  int step = 0;
  for (const DecoderBlock* block : llama.model().blocks()) {
    SparseAttention* attention = block->self_attention().sparse_attention();
    attention->AddForwardPreHook([&, attention](Module&, Invocation& invocation, Tensors& inputs) {
      Record(*attention, *invocation.sequence(), inputs, step, selections);
      return absl::OkStatus();
    });
  }
  for (; step < kSteps; ++step) {
    WEFT_ASSIGN_OR_RETURN(const SparseResult result, llama.Pass(layout, rank));
    size_t index = 0;
    for (const auto& parameter : llama.model().AllParameters()) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> gradient, sum(result.gradients[index++]));
      for (size_t i = 0; i < gradient.size(); ++i)
        parameter->data.As<float>()[i] -= kLearningRate * gradient[i];
    }
  }
  return selections;
}

// Queries that select other keys in the last step than in the first.
float ChangedByTraining(const Selections& selections) {
  float changed = 0;
  for (const auto& [query, keys] : selections) {
    const auto& [step, attention, row, position] = query;
    if (step == 0 && selections.at({kSteps - 1, attention, row, position}) != keys) ++changed;
  }
  return changed;
}

absl::Status CountDifferences(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout whole, SequenceLayout::Create(kTraining.documents, {}));
  SparseLlama alone(kTraining);
  WEFT_ASSIGN_OR_RETURN(const Selections expected,
                        Train(alone, whole, 0, [](const std::vector<float>& values) { return values; }));
  WEFT_ASSIGN_OR_RETURN(const auto split, SplitSparseLlama::Make(bootstrap, kTraining));
  WEFT_ASSIGN_OR_RETURN(
      const Selections selected,
      Train(split->llama, split->layout, split->context->group().group_rank,
            [&](const std::vector<float>& values) { return SumOverRanks(bootstrap, values); }));
  std::vector<float> counts = {static_cast<float>(selected.size()), 0};
  for (const auto& [query, keys] : selected) counts[1] += expected.at(query) == keys ? 0.0F : 1.0F;
  WEFT_ASSIGN_OR_RETURN(counts, SumOverRanks(bootstrap, counts));
  EXPECT_EQ(counts[0], static_cast<float>(expected.size()));
  EXPECT_LE(counts[1], 0.01F * counts[0]);
  EXPECT_GT(ChangedByTraining(expected), 0.5F * static_cast<float>(expected.size()) / kSteps);
  if (bootstrap.rank() == 0) {
    std::printf("%d ranks: %.0f of %.0f queries select other keys than on one rank\n", bootstrap.size(),
                static_cast<double>(counts[1]), static_cast<double>(counts[0]));
  }
  return BootstrapBarrier(bootstrap);
}

TEST(SparseSelection, OfTwoRanksDiffersFromThatOfOneInFewQueries) {
  RunRanks(NodeMap::OneNode(2), CountDifferences);
}

TEST(SparseSelection, OfFourRanksDiffersFromThatOfOneInFewQueries) {
  RunRanks(NodeMap::RanksPerNode(4, 2), CountDifferences);
}

}  // namespace
}  // namespace weft::testing
