// Runs with each optimizer and learning rate: sharded, in backward, over replicas.
#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST_F(TrainRun, GivesTheSameBitsForEveryShardingWithEachOptimizer) {
  config_.data.grad_accum = 2;
  config_.data.batch_size = 8;
  config_.parallel.grad_sync = GradientSync::kLast;
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMuon}) {
    config_.optimizer.kind = kind;
    config_.optimizer.momentum = 0.8;
    config_.optimizer.nesterov = true;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      config_.parallel.param_dtype = dtype;
      config_.parallel.zero_copy = true;
      const Result expected = Run({4, 1});
      EXPECT_LT(expected.steps.back().loss, expected.steps.front().loss);
      EXPECT_EQ(Run({1, 4}).report.weights_hash, expected.report.weights_hash);
      config_.parallel.zero_copy = false;
      EXPECT_EQ(Run({2, 2}).report.weights_hash, expected.report.weights_hash);
    }
  }
}

TEST_F(TrainRun, UpdatesInBackwardToTheSameBitsInLessMemory) {
  config_.optimizer.clip_grad_norm = 0;
  config_.optimizer.lr = 1e-3;
  config_.model.layers = 10;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    config_.optimizer.kind = kind;
    for (const Mesh mesh : {Mesh{1, 2}, Mesh{2, 2}}) {
      config_.data.grad_accum = kind == OptimizerKind::kSgd ? 2 : 1;
      config_.data.batch_size = 8;
      config_.optimizer.in_backward = false;
      const Result after = Run(mesh);
      config_.optimizer.in_backward = true;
      const Result in_backward = Run(mesh);
      EXPECT_EQ(in_backward.report.weights_hash, after.report.weights_hash);
      for (size_t i = 0; i < after.steps.size(); ++i) {
        EXPECT_EQ(in_backward.steps[i].loss, after.steps[i].loss);
        EXPECT_EQ(in_backward.steps[i].grad_norm, after.steps[i].grad_norm);
      }
      if (config_.data.grad_accum > 1) continue;  // The sum of earlier microbatches stays.
      // A shard is half of the weights and of the gradients. Those of some groups are under way at a time.
      const int64_t shard = after.steps[1].peak_bytes.shards / 2;
      EXPECT_LT(in_backward.steps[1].peak_bytes.shards, shard + shard / 2);
    }
  }
}

TEST_F(TrainRun, EndsAtAGradientThatIsNotFiniteIfUpdatedInBackward) {
  config_.optimizer.clip_grad_norm = 0;
  config_.optimizer.in_backward = true;
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1000;
  EXPECT_THAT(RunError(2),
              ::weft::testing::StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("must be finite")));
}

TEST_F(TrainRun, MovesEachMatrixOfMuonAtMostOnceThereAndBack) {
  config_.optimizer.kind = OptimizerKind::kMuon;
  config_.optimizer.adamw_lr = 1e-3;
  const Result result = Run({1, 4}, NodeMap::RanksPerNode(4, 2));
  // Matrices of two layers of dim 16, with a key and value head of 8 elements and a feed-forward of 24.
  const int64_t momentum_bytes = 2 * 4 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16);
  int64_t moved = 0;
  for (const auto& steps : result.by_rank) moved += steps[1].bytes.optimizer;
  EXPECT_GT(moved, 0);
  EXPECT_LE(moved, 2 * momentum_bytes * 3 / 4);
}

TEST_F(TrainRun, GivesTheSameBitsWithTheOptimizerShardedOverReplicas) {
  config_.data.batch_size = 8;
  config_.data.grad_accum = 2;
  config_.eval.paths = config_.data.paths;
  config_.eval.sequences = 8;
  config_.eval.interval = 2;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
    for (const Mesh mesh : {Mesh{2, 2}, Mesh{4, 1}}) {
      config_.parallel.zero_copy = mesh.shard == 2;
      config_.parallel.shard_optimizer_over_replicas = false;
      const TrainReport reduced = Run(mesh, NodeMap::RanksPerNode(4, 2)).report;
      config_.parallel.shard_optimizer_over_replicas = true;
      const TrainReport scattered = Run(mesh, NodeMap::RanksPerNode(4, 2)).report;
      EXPECT_EQ(scattered.weights_hash, reduced.weights_hash) << mesh.shard << " in " << Name(dtype);
      EXPECT_EQ(scattered.eval_loss, reduced.eval_loss) << mesh.shard << " in " << Name(dtype);
    }
  }
}

TEST_F(TrainRun, RefusesToShardTheOptimizerWithoutReplicas) {
  config_.parallel.shard_optimizer_over_replicas = true;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("--shard-optimizer-over-replicas true: needs replicas")));
}

TEST_F(TrainRun, FollowsTheLearningRateSchedule) {
  config_.optimizer.warmup_steps = 2;
  config_.optimizer.lr_schedule = LrDecay::kLinear;
  const Result result = Run({1, 1});
  EXPECT_DOUBLE_EQ(result.steps[0].lr, 0.5e-2);
  EXPECT_DOUBLE_EQ(result.steps[1].lr, 1e-2);
  EXPECT_DOUBLE_EQ(result.steps[2].lr, 0);
}

TEST_F(TrainRun, GivesTheSameBitsOnEveryMeshIfOnlyMatricesDecay) {
  const uint64_t all = Run({2, 2}).report.weights_hash;
  config_.optimizer.decay = DecayScope::kMatrices;
  const uint64_t matrices = Run({2, 2}).report.weights_hash;
  EXPECT_NE(matrices, all);
  EXPECT_EQ(Run({1, 4}).report.weights_hash, matrices);
}

}  // namespace
}  // namespace weft
