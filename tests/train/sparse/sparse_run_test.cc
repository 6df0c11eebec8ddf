// Whole runs with sparse attention: results that meshes do not change, the warm-up of the indexers, the
// independence of the Llama from the indexers' loss.
#include "tests/train/sparse/sparse_run.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(SparseRun, FollowsTheLossesOfOneRankOnEveryMeshIfAllKeysAreSelected) {
  config_.attention.top_k = kAll;
  config_.optimizer.steps = 20;
  config_.data.batch_size = 8;
  ExpectLossesOfOneRank({{1, 2}, {1, 4}, {2, 2}, {4, 1}});
  config_.data.grad_accum = 2;
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  config_.parallel.zero_copy = false;
  ExpectLossesOfOneRank({{1, 2}, {2, 2}});
}

TEST_F(SparseRun, GivesMicrobatchesTheLossesOfOneBatch) {
  config_.attention.top_k = kAll;
  config_.optimizer.steps = 20;
  config_.data.batch_size = 8;
  const Result one = Run({1, 1});
  config_.data.grad_accum = 4;
  ExpectSameLosses(Run({1, 1}), one);
}

TEST_F(SparseRun, FollowsTheLossesOfOneRankWhereItSelects) {
  config_.optimizer.steps = 20;
  config_.data.batch_size = 8;
  const Result one = Run({1, 1});
  for (const Mesh mesh : {Mesh{1, 2}, Mesh{2, 2}}) ExpectSameLosses(Run(mesh), one, 1e-3);
}

TEST_F(SparseRun, IsDenseAttentionIfAllKeysAreSelected) {
  config_.attention.top_k = kAll;
  config_.optimizer.steps = 20;
  const Result sparse = Run({1, 2});
  config_.attention = {};
  Result dense = Run({1, 2});
  for (size_t i = 0; i < dense.steps.size(); ++i) dense.steps[i].indexers = sparse.steps[i].indexers;
  ExpectSameLosses(sparse, dense);
}

TEST_F(SparseRun, ReportsTheIndexersOfEveryStep) {
  const std::vector<StepMetrics> steps = Run({1, 2}).steps;
  for (const StepMetrics& step : steps) {
    ASSERT_TRUE(step.indexers.has_value());
    EXPECT_GT(step.indexers->loss, 0);
    EXPECT_GT(step.indexers->grad_norm, 0);
    EXPECT_GT(step.indexers->mass_selected, 0);
    EXPECT_LE(step.indexers->mass_selected, 1 + 1e-6);
  }
  config_.attention = {};
  EXPECT_FALSE(Run({1, 1}).steps[0].indexers.has_value());
}

TEST_F(SparseRun, GivesAllRanksTheSameMetricsOfTheIndexers) {
  const Result result = Run({2, 2});
  for (const std::vector<StepMetrics>& of_rank : result.by_rank) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      EXPECT_EQ(of_rank[i].indexers->loss, result.steps[i].indexers->loss);
      EXPECT_EQ(of_rank[i].indexers->grad_norm, result.steps[i].indexers->grad_norm);
      EXPECT_EQ(of_rank[i].indexers->mass_selected, result.steps[i].indexers->mass_selected);
    }
  }
}

TEST_F(SparseRun, TrainsTheIndexersAloneInTheWarmUp) {
  config_.attention.warmup_steps = 3;
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{2, 2}}) {
    std::vector<std::string> llama, optimizer, indexers;
    for (const int64_t steps : {1, 3}) {
      config_.optimizer.steps = steps;
      RunAndSave(mesh);
      llama.push_back(SavedFile("model.safetensors"));
      optimizer.push_back(SavedFile("optimizer.safetensors"));
      indexers.push_back(SavedFile("indexer.safetensors"));
      ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Saved()));
      for (const auto& [name, updates] : checkpoint.counts_of_parameters()) {
        EXPECT_EQ(updates, name.find(".indexer.") == std::string::npos ? 0 : steps) << name;
      }
    }
    EXPECT_EQ(llama[0], llama[1]);
    EXPECT_EQ(optimizer[0], optimizer[1]);
    EXPECT_NE(indexers[0], indexers[1]);
    // The first step after it updates everything.
    config_.optimizer.steps = 4;
    RunAndSave(mesh);
    EXPECT_NE(SavedFile("model.safetensors"), llama[0]);
    ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Saved()));
    EXPECT_EQ(checkpoint.counts_of_parameters().at("model.norm.weight"), 1);
  }
}

TEST_F(SparseRun, BeginsTheWarmUpWithTheWeightsOfTheDenseModel) {
  config_.attention.warmup_steps = 1;
  config_.optimizer.steps = 1;
  RunAndSave();
  const std::string warmed_up = SavedFile("model.safetensors");
  config_.attention = {};
  config_.optimizer.lr = 0;
  RunAndSave();
  EXPECT_EQ(SavedFile("model.safetensors"), warmed_up);
}

TEST_F(SparseRun, GivesTheLlamaTheSameBitsForEveryLossCoefficient) {
  config_.optimizer.clip_grad_norm = 0.1;  // The coefficient would show in a common norm.
  // If queries select among their keys, later steps depend on the training of the indexers.
  for (const auto& [top_k, steps] : {std::pair<int64_t, int64_t>{kAll, 4}, {kSelecting, 1}}) {
    config_.attention.top_k = top_k;
    config_.optimizer.steps = steps;
    std::set<std::string> llama, optimizer, indexers;
    for (const double coef : {0.0, 0.25, 1.0, 700.0}) {
      config_.attention.loss_coef = coef;
      RunAndSave({1, 2});
      llama.insert(SavedFile("model.safetensors"));
      optimizer.insert(SavedFile("optimizer.safetensors"));
      indexers.insert(SavedFile("indexer_optimizer.safetensors"));
    }
    EXPECT_EQ(llama.size(), 1) << top_k;
    EXPECT_EQ(optimizer.size(), 1) << top_k;
    EXPECT_GT(indexers.size(), 1) << top_k;
  }
}

TEST_F(SparseRun, GivesTheSameBitsForEverySchedule) {
  config_.attention.warmup_steps = 1;
  std::set<uint64_t> hashes;
  for (const bool zero_copy : {true, false}) {
    for (const ActivationCheckpoint checkpoint : {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull}) {
      config_.parallel.zero_copy = zero_copy;
      config_.parallel.activation_checkpoint = checkpoint;
      hashes.insert(Run({2, 2}).report.weights_hash);
    }
  }
  config_.parallel.shard_optimizer_over_replicas = true;
  hashes.insert(Run({2, 2}).report.weights_hash);
  EXPECT_EQ(hashes.size(), 1);
}

TEST_F(SparseRun, EvaluatesWithTheSelectionOfTheIndexers) {
  config_.eval.paths = config_.data.paths;
  config_.eval.sequences = 8;
  const double loss = Run({1, 2}).report.eval_loss.value();
  EXPECT_EQ(Run({2, 1}).report.eval_loss, loss);
  config_.attention.top_k = 1;
  EXPECT_NE(Run({1, 2}).report.eval_loss, loss);
}

TEST_F(SparseRun, SkipsStepsThatAreNotFiniteOnAllRanksAlike) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 6;
  config_.optimizer.max_skipped_steps = 6;
  const Result result = Run({1, 2});
  EXPECT_GT(result.report.skipped_steps, 0);
  EXPECT_EQ(result.by_rank[1].back().skipped_steps, result.report.skipped_steps);
}

TEST_F(SparseRun, PrintsItsAttentionAndTheLossOfTheIndexers) {
  config_.attention.warmup_steps = 2;
  EXPECT_THAT(Printed({1, 1}, NodeMap::OneNode(1)),
              AllOf(HasSubstr("sparse, 5 keys a query, selected by 2 index heads of 8, 2 warm-up steps"),
                    HasSubstr("(new indexers)"), HasSubstr("  indexer ")));
  config_.attention = {};
  EXPECT_THAT(Printed({1, 1}, NodeMap::OneNode(1)),
              AllOf(Not(HasSubstr("attention  ")), Not(HasSubstr("indexer"))));
}

class SparseContextRun : public SparseRun {
 protected:
  SparseContextRun() {
    config_.data.seq_len = 19;
    config_.model.heads = 4;
    config_.model.kv_heads = 2;
    config_.optimizer.steps = 20;
  }

  // Expects the losses of one rank, with and without documents and load balance.
  void ExpectLossesOfOneRankWithEveryGather(const std::vector<Mesh>& meshes, double tolerance) {
    for (const std::optional<int64_t> separator : {std::optional<int64_t>(), std::optional<int64_t>('e')}) {
      config_.data.document_separator = separator;
      const Result one = Run({1, 1});
      for (const Mesh& mesh : meshes) {
        for (const auto balance : {std::optional<LoadBalance>(), std::optional(LoadBalance::kNone)}) {
          SCOPED_TRACE(absl::StrCat(mesh.shard, "x", mesh.context, separator ? " packed" : "",
                                    balance ? " without balance" : ""));
          config_.parallel.context.load_balance = balance;
          ExpectSameLosses(Run(mesh), one, tolerance);
        }
      }
    }
  }
};

TEST_F(SparseContextRun, FollowsTheLossesOfOneRankIfAllKeysAreSelected) {
  config_.attention.top_k = kAll;
  ExpectLossesOfOneRankWithEveryGather({{1, 1, 2}, {1, 1, 4}, {1, 2, 2}}, 1e-4);
}

TEST_F(SparseContextRun, FollowsTheLossesOfOneRankWhereItSelects) {
  ExpectLossesOfOneRankWithEveryGather({{1, 1, 2}, {1, 1, 4}}, 1e-3);
}

TEST_F(SparseContextRun, FollowsTheLossesOfOneRankAfterAWarmUp) {
  config_.attention.warmup_steps = 2;
  config_.data.grad_accum = 2;
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  const Result one = Run({1, 1});
  const Result two = Run({1, 1, 2});
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(two.steps[i].loss / one.steps[i].loss, 1, 1e-3);
    EXPECT_NEAR(two.steps[i].indexers->loss / one.steps[i].indexers->loss, 1, 2e-2);
  }
  EXPECT_EQ(two.steps[1].grad_norm, 0);
}

TEST_F(SparseContextRun, GathersWithHeadTailByDefault) {
  config_.optimizer.steps = 1;
  EXPECT_THAT(
      Printed({1, 1, 2}, NodeMap::OneNode(2)),
      AllOf(HasSubstr("split over 2 ranks, gather"), HasSubstr("head-tail"), HasSubstr("(--attention dsa)")));
  config_.parallel.context.scheme = CpScheme::kGather;
  EXPECT_THAT(Printed({1, 1, 2}, NodeMap::OneNode(2)), HasSubstr("(--cp-scheme)"));
}

}  // namespace
}  // namespace weft
