// Runs in f16: dynamic and fixed loss scales, steps that overflow, and resumed runs.
#include <set>
#include <string>
#include <vector>

#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

class LossScaleRun : public TrainRun {
 protected:
  LossScaleRun() { config_.parallel.param_dtype = DType::kF16; }

  static std::vector<double> ScalesOf(const std::vector<StepMetrics>& steps) {
    std::vector<double> scales;
    for (const StepMetrics& step : steps) scales.push_back(step.loss_scale.value().scale);
    return scales;
  }
};

TEST_F(LossScaleRun, GivesTheSameBitsOnEveryMeshOfFourRanks) {
  for (const DType reduce : {DType::kF32, DType::kF16}) {
    config_.parallel.reduce_dtype = reduce;
    const Result expected = Run({1, 4});
    EXPECT_LT(expected.steps.back().loss, expected.steps.front().loss);
    for (const Mesh mesh : {Mesh{2, 2}, Mesh{4, 1}}) {
      config_.parallel.zero_copy = mesh.shard == 1;
      const Result result = Run(mesh, NodeMap::RanksPerNode(4, 2));
      // In f16 the sums of shard groups and those over replicas are rounded each.
      if (reduce == DType::kF32) {
        EXPECT_EQ(result.report.weights_hash, expected.report.weights_hash);
      }
      ExpectSameLosses(result, expected, reduce == DType::kF32 ? 0 : 2e-3);
    }
  }
}

TEST_F(LossScaleRun, FollowsTheLossesInF32) {
  config_.parallel.param_dtype = DType::kF32;
  const Result exact = Run({1, 1});
  config_.parallel.param_dtype = DType::kF16;
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{1, 2}, Mesh{1, 2, 2}}) {
    ExpectSameLosses(Run(mesh), exact, 1e-2);
  }
}

TEST_F(LossScaleRun, BacksOffOnAllRanksAlikeAndGoesOn) {
  config_.optimizer.loss_scale_growth_interval = 1;
  config_.optimizer.steps = 16;
  const Result result = Run({2, 2});
  int64_t skipped = 0;
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const LossScaleMetrics& step = *result.steps[i].loss_scale;
    skipped += step.skipped ? 1 : 0;
    EXPECT_EQ(result.steps[i].skipped_steps, skipped);
    EXPECT_EQ(result.steps[i].counted_skips, 0);
    if (i + 1 < result.steps.size()) {
      EXPECT_EQ(result.steps[i + 1].loss_scale->scale, step.skipped ? step.scale / 2 : step.scale * 2);
    }
  }
  EXPECT_GT(skipped, 0);
  for (const std::vector<StepMetrics>& of_rank : result.by_rank) {
    EXPECT_EQ(ScalesOf(of_rank), ScalesOf(result.steps));
  }
}

TEST_F(LossScaleRun, ChangesNoParameterIfAGradientOverflows) {
  config_.optimizer.steps = 1;
  config_.optimizer.lr = 0;
  const uint64_t initial = Run({1, 2}).report.weights_hash;
  config_.optimizer.lr = 1e-2;
  config_.optimizer.loss_scale = "1e30";
  config_.optimizer.max_skipped_steps = 1;
  const Result result = Run({1, 2});
  EXPECT_EQ(result.report.weights_hash, initial);
  for (const std::vector<StepMetrics>& of_rank : result.by_rank) EXPECT_TRUE(of_rank[0].loss_scale->skipped);
  config_.optimizer.loss_scale = "1024";
  EXPECT_NE(Run({1, 2}).report.weights_hash, initial);

  config_.optimizer.loss_scale = "1e30";
  config_.optimizer.max_skipped_steps = 0;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kOutOfRange,
                                    AllOf(HasSubstr("the gradient norm inf at the loss scale 1e+30"),
                                          HasSubstr("a smaller --loss-scale"))));
}

TEST_F(LossScaleRun, UpdatesInBackwardWithAFixedScaleToTheSameBits) {
  config_.optimizer.clip_grad_norm = 0;
  config_.optimizer.loss_scale = "1000";
  const Result after = Run({1, 2});
  config_.optimizer.in_backward = true;
  const Result in_backward = Run({1, 2});
  EXPECT_EQ(in_backward.report.weights_hash, after.report.weights_hash);
  EXPECT_EQ(in_backward.steps[2].grad_norm, after.steps[2].grad_norm);
}

// The scale doubles after steps 3 and 6. The run stops after step 4.
TEST_F(LossScaleRun, ResumesInTheMidstOfCountingToTheSameBits) {
  config_.optimizer.steps = 8;
  config_.optimizer.loss_scale_growth_interval = 3;
  const Result whole = Run({1, 4});
  const std::vector<double> scales = ScalesOf(whole.steps);
  EXPECT_GT(std::set<double>(scales.begin(), scales.end()).size(), 1);
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.optimizer.steps = 4;
  Run({1, 4});
  config_.checkpoint.resume = "auto";
  config_.optimizer.steps = 8;
  const Result resumed = Run({2, 2});
  EXPECT_EQ(resumed.report.weights_hash, whole.report.weights_hash);
  EXPECT_EQ(ScalesOf(resumed.steps), ScalesOf({whole.steps.begin() + 4, whole.steps.end()}));
  EXPECT_EQ(resumed.report.skipped_steps, whole.report.skipped_steps);
}

// The run backs off before its checkpoint. Later runs have no scale that backs off. The steps still do not
// count.
TEST_F(LossScaleRun, ResumesAfterBackingOffWithoutADynamicScale) {
  config_.optimizer.loss_scale_growth_interval = 1;
  config_.optimizer.steps = 16;
  config_.checkpoint.folder = folder_ / "checkpoints";
  const int64_t skipped = Run({1, 2}).report.skipped_steps;
  EXPECT_GT(skipped, 0);
  config_.optimizer.loss_scale_growth_interval = 2000;
  config_.checkpoint.resume = "auto";
  for (const DType dtype : {DType::kF16, DType::kF16, DType::kF32}) {
    config_.parallel.param_dtype = dtype;
    config_.optimizer.loss_scale = dtype == DType::kF16 ? "1024" : "";
    config_.optimizer.steps += 1;
    const Result result = Run({1, 2});
    EXPECT_EQ(result.report.skipped_steps, skipped);
    EXPECT_EQ(result.steps.back().counted_skips, 0);
  }
}

TEST_F(LossScaleRun, TrainsIndexersWithTheScale) {
  config_.attention.kind = AttentionKind::kDsa;
  config_.attention.top_k = 16;
  config_.attention.warmup_steps = 1;
  config_.parallel.param_dtype = DType::kF32;
  const Result exact = Run({1, 2});
  config_.parallel.param_dtype = DType::kF16;
  const Result rounded = Run({1, 2});
  for (size_t i = 0; i < exact.steps.size(); ++i) {
    EXPECT_NEAR(rounded.steps[i].loss, exact.steps[i].loss, 1e-2);
    EXPECT_NEAR(rounded.steps[i].indexers->grad_norm / exact.steps[i].indexers->grad_norm, 1, 0.1);
  }
}

TEST_F(LossScaleRun, PrintsScaleAndProducts) {
  EXPECT_THAT(Printed({1, 1}, NodeMap::OneNode(1)),
              AllOf(HasSubstr("loss-scale    dynamic from 65536, doubled after 2000 steps"),
                    HasSubstr("products      f16"), HasSubstr("  scale 65536")));
}

}  // namespace
}  // namespace weft
