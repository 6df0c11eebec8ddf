// Keys that sparse attention selects in training on a mesh, against those of one rank.
//
// Meshes add up gradients in different orders. Weights, and with them index scores, then round differently,
// and a query may select another key where two scores nearly tie. The tests print how many queries do.
#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/train/loop/trainer.h"
#include "src/train/plan/inputs.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "tests/train/sparse/sparse_run.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {
namespace {

using ::weft::testing::kTestTimeout;
using ::weft::testing::RunRanks;

// A token by its place in the data, which the mesh does not change.
struct Token {
  int64_t document, position;
  auto operator<=>(const Token&) const = default;
};
std::vector<Token> TokensOf(const TokenRuns& runs) {
  std::vector<Token> tokens;
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) tokens.push_back({run.document, run.position + i});
  }
  return tokens;
}
TokenRuns RunsOfAllRanks(const SequenceParts& sequence) {
  TokenRuns all;
  for (const TokenRuns& part : sequence.parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

struct Query {
  int64_t step;
  std::string attention;
  int64_t sequence;  // Number in the batch. Of a pack: that of its first sequence.
  Token token;
  auto operator<=>(const Query&) const = default;
};
using Scores = std::map<Token, float>;  // Of the selected keys.

bool HaveSameKeys(const Scores& a, const Scores& b) {
  return std::ranges::equal(a, b, {}, &Scores::value_type::first, &Scores::value_type::first);
}
// Distance of the best selected key that `other` lacks from the lowest selected score.
double DistanceFromCutoff(const Scores& selected, const Scores& other) {
  double lowest = std::numeric_limits<double>::infinity(), best = -lowest;
  for (const auto& [key, score] : selected) {
    lowest = std::min<double>(lowest, score);
    if (!other.contains(key)) best = std::max<double>(best, score);
  }
  return best - lowest;
}
double LargestScore(const Scores& scores) {
  double largest = 0;
  for (const auto& [key, score] : scores) largest = std::max<double>(largest, std::abs(score));
  return largest;
}

struct Difference {
  int64_t differing = 0;
  int64_t queries = 0;     // Of all steps and layers.
  int64_t first_step = 0;  // With a differing query; 0: none.
  double distance = 0;     // The largest DistanceFromCutoff in that step, over the largest score of the run.
};

// Selections of a run. Thread safety: any thread.
class SelectionLog {
 public:
  // Selects keys as the attention does, from its inputs. `sequence`: that of the first row.
  void Add(int64_t step, int64_t sequence, const SparseAttention& attention, const Invocation& invocation,
           const Tensors& inputs) {
    const auto view = [&](SparseAttention::Input input) { return inputs[input].view(); };
    const Tensor& index_k = inputs[SparseAttention::kIndexK];
    const Tensor index_keys = index_k.Reshape({index_k.dim(0), index_k.dim(1), index_k.dim(3)});
    const SequenceParts* parts = invocation.sequence().get();
    const TokenRuns queries = parts == nullptr ? WholeSequence(index_k.dim(1)) : parts->runs();
    const TokenRuns keys = parts == nullptr ? queries : RunsOfAllRanks(*parts);
    const KeyBlock block{view(SparseAttention::kK), view(SparseAttention::kV), &keys};
    const KeySelection selection =
        SelectKeys(attention.options().mask, attention.options().top_k,
                   {view(SparseAttention::kIndexQ), view(SparseAttention::kIndexWeights)}, queries,
                   {&block, 1}, {&index_keys.view(), 1});
    const std::vector<Token> query_tokens = TokensOf(queries), key_tokens = TokensOf(keys);
    const auto tokens = static_cast<int64_t>(query_tokens.size());
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < selection.keys.dim(0) * tokens; ++i) {
      Scores scores;
      for (int64_t n = i * selection.width(); n < i * selection.width() + selection.counts.As<int32_t>()[i];
           ++n) {
        scores[key_tokens[static_cast<size_t>(selection.keys.As<int32_t>()[n])]] =
            selection.scores.As<float>()[n];
      }
      const Query query = {step, attention.name(), sequence + i / tokens,
                           query_tokens[static_cast<size_t>(i % tokens)]};
      EXPECT_TRUE(selections_.emplace(query, std::move(scores)).second) << "a query selected twice";
    }
  }

  Difference From(const SelectionLog& reference) const {
    Difference difference;
    double largest_score = 0;
    EXPECT_EQ(selections_.size(), reference.selections_.size());
    for (const auto& [query, expected] : reference.selections_) {  // By ascending step.
      ++difference.queries;
      largest_score = std::max(largest_score, LargestScore(expected));
      const auto found = selections_.find(query);
      if (found == selections_.end()) {
        ADD_FAILURE() << query.attention << " in step " << query.step << " lacks a query of sequence "
                      << query.sequence;
        continue;
      }
      EXPECT_EQ(found->second.size(), expected.size());
      if (HaveSameKeys(found->second, expected)) continue;
      ++difference.differing;
      if (difference.first_step == 0) difference.first_step = query.step;
      if (query.step == difference.first_step) {
        difference.distance = std::max(difference.distance, DistanceFromCutoff(expected, found->second));
      }
    }
    difference.distance /= largest_score;
    return difference;
  }

 private:
  std::mutex mutex_;
  std::map<Query, Scores> selections_;
};

class Selections : public SparseRun {
 protected:
  Selections() {
    config_.model.heads = 4;
    config_.model.kv_heads = 2;
    config_.model.dim = 64;
    config_.model.ffn_dim = 192;
    config_.data.batch_size = 8;
    config_.data.seq_len = 64;
    config_.attention.top_k = 12;
    config_.attention.index_dim = 32;
    config_.optimizer.lr = 3e-3;
    config_.optimizer.warmup_steps = 10;
    config_.optimizer.steps = 20;
  }

  // The steps of a run, with all selections in `log`.
  Result RunAndLog(const Mesh& mesh, SelectionLog& log) {
    TrainConfig config = config_;
    config.parallel.dp_replicate = mesh.replicate;
    config.parallel.dp_shard = mesh.shard;
    config.parallel.context.size = mesh.context;
    Result result;
    RunRanks(NodeMap::OneNode(mesh.ranks()), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const TrainInputs inputs, OpenInputs(config));
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LlamaModel> model, LlamaModel::Create(inputs.model));
      WEFT_ASSIGN_OR_RETURN(const RunPlan plan, MakeRunPlan(config, inputs, bootstrap.node_map()));
      WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(bootstrap, inputs.corpus, plan, std::move(model),
                                            LoadInputs(inputs, config.seed), engine_));
      int64_t step = 1;
      std::vector<int64_t> microbatches;  // Begun in this step, for each layer.
      for (const DecoderBlock* block : trainer->model().blocks()) {
        SparseAttention* attention = block->self_attention().sparse_attention();
        const size_t layer = microbatches.size();
        microbatches.push_back(0);
        attention->AddForwardPreHook(
            [&, attention, layer](Module&, Invocation& invocation, Tensors& tensors) {
              const SequenceRange sequences =
                  plan.batch.Part(microbatches[layer]++, plan.data_parallel_rank(bootstrap.rank()));
              log.Add(step, sequences.first, *attention, invocation, tensors);
              return absl::OkStatus();
            });
      }
      for (; step <= config.optimizer.steps; ++step) {
        std::fill(microbatches.begin(), microbatches.end(), 0);
        WEFT_ASSIGN_OR_RETURN(const Trainer::StepResult done,
                              trainer->Step(step, {}, [] { return absl::OkStatus(); }));
        if (bootstrap.rank() == 0) result.steps.push_back(done.metrics);
      }
      return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
    });
    return result;
  }

  // Prints how many queries select other keys than on one rank. Expects the losses of one rank, and the first
  // differences at near ties. A pack has the sequences of one microbatch. Runs with packs are therefore
  // compared with one rank that accumulates as many microbatches. The gradient norm of a batch of 512 tokens
  // shows a single query that selects another key.
  void CompareWithOneRank(const Mesh& mesh, double largest_share) {
    const bool is_packed = config_.data.document_separator.has_value();
    const std::string name =
        absl::StrCat(mesh.replicate, " x ", mesh.shard, ", cp ", mesh.context, is_packed ? ", packed" : "");
    SCOPED_TRACE(name);
    SelectionLog one, split;
    config_.data.grad_accum = is_packed ? mesh.replicate * mesh.shard : 1;
    const Result expected = RunAndLog({1, 1}, one);
    config_.data.grad_accum = 1;
    const Result result = RunAndLog(mesh, split);
    double loss = 0, grad_norm = 0;
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      loss = std::max(loss, std::abs(result.steps[i].loss / expected.steps[i].loss - 1));
      grad_norm = std::max(grad_norm, std::abs(result.steps[i].grad_norm / expected.steps[i].grad_norm - 1));
    }
    const Difference difference = split.From(one);
    std::printf(
        "%-20s %5lld of %lld selections differ, first in step %lld; loss by %.0e, gradient norm by %.0e\n",
        name.c_str(), static_cast<long long>(difference.differing),
        static_cast<long long>(difference.queries), static_cast<long long>(difference.first_step), loss,
        grad_norm);
    EXPECT_LT(loss, 1e-3);
    EXPECT_LT(grad_norm, difference.differing == 0 ? 1e-3 : 1e-2);
    EXPECT_EQ(difference.queries, config_.optimizer.steps * *config_.data.batch_size * config_.data.seq_len *
                                      *config_.model.layers);
    EXPECT_NE(difference.first_step, 1);
    EXPECT_LT(difference.distance, 1e-3);
    EXPECT_LE(static_cast<double>(difference.differing),
              largest_share * static_cast<double>(difference.queries));
  }
};

const std::vector<Mesh> kMeshes = {{1, 2}, {2, 2}, {1, 1, 2}, {1, 1, 4}, {1, 2, 2}};

TEST_F(Selections, OfAMeshDifferFromThoseOfOneRankInFewQueries) {
  for (const Mesh& mesh : kMeshes) CompareWithOneRank(mesh, 0.01);
}

TEST_F(Selections, OfPacksDifferFromThoseOfOneRankInFewQueries) {
  config_.data.document_separator = 'e';
  for (const Mesh& mesh : kMeshes) CompareWithOneRank(mesh, 0.01);
}

// AdamW's first updates have the size of the learning rate, however small a gradient is. They turn rounding
// of gradients near zero into different weights. On some meshes no query differs all the same.
TEST_F(Selections, OfALargeLearningRateDifferFromThoseOfOneRankInAtMostHalfOfTheQueries) {
  config_.optimizer.lr = 1e-2;
  config_.optimizer.warmup_steps = 0;
  for (const Mesh& mesh : kMeshes) CompareWithOneRank(mesh, 0.5);
}

}  // namespace
}  // namespace weft
