// Runs that evaluate the loss on other data.
#include <limits>
#include <string>
#include <vector>

#include "src/train/loop/finite_checks.h"
#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

TEST_F(TrainRun, EvaluatesWithTheSameBitsOnEveryMesh) {
  config_.eval.paths = {
      folder_.Write("eval.txt", SomeText().substr(1234, 1600))};  // Two passes, the second one short.
  config_.optimizer.lr = 0;
  config_.data.batch_size = 12;
  const Result one = Run({1, 1});
  ASSERT_TRUE(one.report.eval_loss.has_value());
  for (const Mesh mesh : {Mesh{1, 2}, Mesh{1, 3}, Mesh{2, 2}, Mesh{4, 1}}) {
    EXPECT_EQ(Run(mesh).report.eval_loss, one.report.eval_loss) << mesh.replicate << "x" << mesh.shard;
  }
}

TEST_F(TrainRun, EvaluatesTheLossThatTrainingReportsForTheSameWindows) {
  config_.eval.paths = config_.data.paths;
  config_.optimizer.lr = 0;
  config_.optimizer.steps = 1;
  config_.data.shuffle = false;
  config_.eval.sequences = 240;
  config_.data.batch_size = 240;
  const Result all = Run({1, 2});
  EXPECT_NEAR(all.report.eval_loss.value(), all.report.loss, 1e-6);
  config_.eval.sequences = 8;
  config_.data.batch_size = 8;
  const Result few = Run({1, 2});
  EXPECT_NEAR(few.report.eval_loss.value(), few.report.loss, 1e-6);
  EXPECT_NE(few.report.eval_loss, all.report.eval_loss);
}

TEST_F(TrainRun, EvaluatesAtTheIntervalAndAfterTheLastStepWithoutChangingWeights) {
  config_.optimizer.steps = 5;
  const uint64_t without = Run({2, 2}).report.weights_hash;
  config_.eval.paths = config_.data.paths;
  config_.eval.interval = 2;
  const Result result = Run({2, 2});
  std::vector<int64_t> evaluated;
  for (const StepMetrics& step : result.steps) {
    if (step.eval_loss) {
      evaluated.push_back(step.step);
    }
  }
  EXPECT_THAT(evaluated, ::testing::ElementsAre(2, 4, 5));
  EXPECT_LT(*result.steps[4].eval_loss, *result.steps[1].eval_loss);
  EXPECT_EQ(result.report.weights_hash, without);
}

TEST_F(TrainRun, NamesTheRemediesOfAnEvaluationAlone) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1;
  config_.output.export_folder = folder_ / "large";
  Run({1, 1});
  config_.output.export_folder.clear();
  config_.model = {};
  config_.model.hf_model = folder_ / "large";
  config_.optimizer.steps = 0;
  config_.eval.paths = config_.data.paths;
  config_.parallel.param_dtype = DType::kF16;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kOutOfRange,
                                    AllOf(HasSubstr("must be finite: check the weights of --hf-model, or use "
                                                    "--param-dtype bf16 or f32"),
                                          Not(HasSubstr("--lr")))));
  config_.parallel.param_dtype = DType::kF32;
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_THAT(std::string(CheckLossOfGivenWeights(0, infinite, config_).message()),
              EndsWith("check the weights of --hf-model"));
  config_.checkpoint.resume = "auto";
  EXPECT_THAT(std::string(CheckLossOfGivenWeights(8, infinite, config_).message()),
              EndsWith("check the weights of --resume"));
}

TEST_F(TrainRun, RefusesEvaluationDataOfAnotherFormat) {
  config_.eval.paths = {folder_.Write("eval.u16", std::string(400, '\0'))};
  const absl::Status status = RunError(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("eval.u16' holds token ids"));
  config_.eval.paths = {folder_.Write("short.txt", "short")};
  EXPECT_THAT(std::string(RunError(2).message()), HasSubstr("--eval-data: the data has 5 tokens"));
}

}  // namespace
}  // namespace weft
