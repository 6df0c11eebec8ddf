// Fixture of small training runs over ranks that are threads, on any mesh and node map.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/train/train.h"

namespace weft {

struct Mesh {
  int replicate;
  int shard;
  int context = 1;
  int ranks() const { return replicate * shard * context; }
};

// Text whose windows have different gradients. All bytes are below 131, the vocabulary size of UseOddSizes.
inline std::string SomeText() {
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + (i * i / 7 + i / 3) % 26);
  }
  return text;
}

class TrainRun : public ::testing::Test {
 protected:
  TrainRun() {
    config_.data.paths = {folder_.Write("text.txt", SomeText())};
    config_.model.layers = 2;
    config_.model.dim = 16;
    config_.model.heads = 2;
    config_.model.kv_heads = 1;
    config_.model.ffn_dim = 24;
    config_.data.seq_len = 16;
    config_.optimizer.lr = 1e-2;
    config_.optimizer.steps = 3;
    config_.data.batch_size = 4;
  }

  void UseOddSizes() {
    config_.model.dim = 60;
    config_.model.heads = 5;
    config_.model.kv_heads = 5;
    config_.model.ffn_dim = 101;
    config_.model.vocab_size = 131;
  }

  struct Result {
    TrainReport report;
    std::vector<StepMetrics> steps;                 // Metrics of rank 0.
    std::vector<std::vector<StepMetrics>> by_rank;  // Metrics of each rank.
  };

  Result Run(const Mesh& mesh, const NodeMap& nodes) {
    TrainConfig config = config_;
    config.parallel.dp_replicate = mesh.replicate;
    config.parallel.dp_shard = mesh.shard;
    if (mesh.context == 1) config.parallel.context = {};  // Validate refuses its options without --cp.
    config.parallel.context.size = mesh.context;
    EXPECT_OK(Validate(config));
    Result result;
    result.by_rank.resize(static_cast<size_t>(mesh.ranks()));
    EXPECT_OK(RunThreadRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      TrainEnvironment environment;
      environment.engine = engine_;
      environment.output = output_;
      std::vector<StepMetrics>& own = result.by_rank[static_cast<size_t>(bootstrap.rank())];
      environment.on_step = [&own](const StepMetrics& metrics) { own.push_back(metrics); };
      WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config, environment));
      if (bootstrap.rank() == 0) {
        result.report = report;
      }
      return absl::OkStatus();
    }));
    result.steps = result.by_rank[0];
    return result;
  }
  Result Run(const Mesh& mesh) { return Run(mesh, NodeMap::OneNode(mesh.ranks())); }

  // The text that a run prints.
  std::string Printed(const Mesh& mesh, const NodeMap& nodes) {
    char* text = nullptr;
    size_t bytes = 0;
    output_ = open_memstream(&text, &bytes);
    Run(mesh, nodes);
    std::fclose(std::exchange(output_, nullptr));
    const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
    return {text, bytes};
  }

  // The error that all ranks of a run agree on.
  absl::Status RunError(int ranks) {
    return RunThreadRanks(NodeMap::OneNode(ranks),
                          [&](Bootstrap& bootstrap) { return Train(bootstrap, config_, {}).status(); });
  }

  // Expects losses and gradient norms to agree within `tolerance`. Those of indexers of a new model agree
  // within 2e-2 only: its attention is nearly uniform, and their loss of some 1e-5 a sum of terms that
  // cancel.
  static void ExpectSameLosses(const Result& result, const Result& expected, double tolerance = 1e-4) {
    ASSERT_EQ(result.steps.size(), expected.steps.size());
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      const StepMetrics& step = result.steps[i];
      const StepMetrics& reference = expected.steps[i];
      EXPECT_NEAR(step.loss / reference.loss, 1, tolerance);
      EXPECT_NEAR(step.grad_norm / reference.grad_norm, 1, tolerance);
      ASSERT_EQ(step.indexers.has_value(), reference.indexers.has_value());
      if (!step.indexers) continue;
      EXPECT_NEAR(step.indexers->loss / reference.indexers->loss, 1, 2e-2);
      EXPECT_NEAR(step.indexers->grad_norm / reference.indexers->grad_norm, 1, 2e-2);
    }
  }

  void ExpectLossesOfOneRank(const std::vector<Mesh>& meshes) {
    const Result one = Run({1, 1});
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(absl::StrCat(mesh.replicate, "x", mesh.shard, "x", mesh.context));
      ExpectSameLosses(Run(mesh), one);
    }
  }

  TempFolder folder_;
  TrainConfig config_;
  EngineOptions engine_;
  std::FILE* output_ = nullptr;
};

}  // namespace weft
