// Runs with a loss, gradient norm or weight that is not finite: all ranks skip the step, or end at it.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <vector>

#include "tests/train/train_run.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

TEST_F(TrainRun, EndsOnAllRanksAtTheFirstStepWhoseLossOrGradientNormIsNotFinite) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1000;
  config_.data.batch_size = 3;
  config_.output.export_folder = folder_ / "out";
  std::mutex mutex;
  std::set<std::string> errors;
  std::vector<StepMetrics> steps;
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(3), [&](Bootstrap& bootstrap) -> absl::Status {
    TrainEnvironment environment;
    environment.on_step = [&](const StepMetrics& metrics) {
      if (bootstrap.rank() == 2) steps.push_back(metrics);
    };
    const absl::Status own = Train(bootstrap, config_, environment).status();
    EXPECT_EQ(own.code(), absl::StatusCode::kOutOfRange) << own;
    const std::lock_guard lock(mutex);
    errors.insert(std::string(own.message().substr(own.message().find("step"))));
    return absl::OkStatus();
  }));
  ASSERT_GT(steps.size(), 1);
  EXPECT_FALSE(std::isfinite(steps.back().loss) && std::isfinite(steps.back().grad_norm));
  EXPECT_TRUE(std::isfinite(steps[steps.size() - 2].loss));
  EXPECT_THAT(errors,
              ::testing::ElementsAre(HasSubstr(absl::StrCat("step ", steps.size(), ": the loss is "))));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TrainRun, SkipsTheUpdateOfAStepThatIsNotFiniteOnAllRanksAlike) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 30;
  config_.optimizer.max_skipped_steps = 30;
  const Result all = Run({2, 2});
  const auto first_skipped = std::find_if(all.steps.begin(), all.steps.end(),
                                          [](const StepMetrics& step) { return step.skipped_steps > 0; });
  ASSERT_NE(first_skipped, all.steps.end());
  EXPECT_EQ(first_skipped->skipped_steps, 1);
  EXPECT_FALSE(std::isfinite(first_skipped->loss) && std::isfinite(first_skipped->grad_norm));
  EXPECT_EQ(all.report.skipped_steps, all.steps.back().skipped_steps);
  for (const std::vector<StepMetrics>& of_rank : all.by_rank) {
    ASSERT_EQ(of_rank.size(), all.steps.size());
    for (size_t i = 0; i < of_rank.size(); ++i) {
      EXPECT_EQ(of_rank[i].skipped_steps, all.steps[i].skipped_steps) << i;
    }
  }
  // The skipped step leaves the weights as the step before made them.
  config_.optimizer.steps = first_skipped->step;
  const uint64_t after_skip = Run({2, 2}).report.weights_hash;
  config_.optimizer.steps = first_skipped->step - 1;
  EXPECT_EQ(Run({2, 2}).report.weights_hash, after_skip);
}

// Such weights are finite, and so is the loss of uniform predictions. Only the gradients overflow.
TEST_F(TrainRun, SkipsAStepWhoseGradientNormAloneIsNotFinite) {
  config_.optimizer.lr = 1e30;
  config_.optimizer.steps = 2;
  config_.optimizer.max_skipped_steps = 1;
  const std::vector<StepMetrics> steps = Run({2, 2}).steps;
  ASSERT_EQ(steps.size(), 2);
  EXPECT_TRUE(std::isfinite(steps[1].loss)) << steps[1].loss;
  EXPECT_FALSE(std::isfinite(steps[1].grad_norm)) << steps[1].grad_norm;
  EXPECT_EQ(steps[1].skipped_steps, 1);
}

TEST_F(TrainRun, EndsWhenItHasSkippedMoreStepsThanAllowed) {
  config_.optimizer.lr = 1e6;
  config_.optimizer.steps = 1000;
  config_.optimizer.max_skipped_steps = 2;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kOutOfRange,
                                    HasSubstr("3 steps were skipped, and --max-skipped-steps allows 2")));
}

// Weights that diverge after some steps.
class DivergingRun : public TrainRun {
 protected:
  DivergingRun() {
    config_.optimizer.lr = 1e6;
    config_.optimizer.steps = 1000;
  }
  // Returns the output of a run on 2 ranks that ends with an error.
  std::string Printed() {
    char* text = nullptr;
    size_t bytes = 0;
    output_ = open_memstream(&text, &bytes);
    EXPECT_THAT(RunThreadRanks(NodeMap::OneNode(2),
                               [&](Bootstrap& bootstrap) {
                                 TrainEnvironment environment;
                                 environment.output = output_;
                                 return Train(bootstrap, config_, environment).status();
                               }),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("finite")));
    std::fclose(std::exchange(output_, nullptr));
    const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
    return {text, bytes};
  }
};

TEST_F(DivergingRun, WritesTheStepsThatItHasTraced) {
  config_.output.trace_file = folder_ / "trace.json";
  config_.output.trace_steps = "1:1000";
  const std::string printed = Printed();
  EXPECT_THAT(printed, HasSubstr("trace of steps 1 to "));
  EXPECT_THAT(ReadFile(config_.output.trace_file), HasSubstr("step 1"));
}

TEST_F(DivergingRun, SaysThatItHasNotWrittenATraceOfLaterSteps) {
  config_.output.trace_file = folder_ / "trace.json";
  config_.output.trace_steps = "999";
  EXPECT_THAT(Printed(), HasSubstr("trace.json is not written: the run did none of the steps"));
}

TEST_F(DivergingRun, NamesEveryCheckpointThatItHasSaved) {
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.checkpoint.interval = 1;
  config_.checkpoint.keep = 0;
  config_.checkpoint.async = true;  // The save of the last step but one is under way at the end.
  const std::string printed = Printed();
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(config_.checkpoint.folder));
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    EXPECT_THAT(printed, HasSubstr("saved " + config_.checkpoint.folder + "/" + name + "\n"));
  }
}

TEST_F(TrainRun, SaysThatUpdatesInBackwardWereNotSkipped) {
  config_.optimizer.lr = 1e30;
  config_.optimizer.in_backward = true;
  config_.optimizer.clip_grad_norm = 0;
  int64_t skipped_steps = 0;
  char* text = nullptr;
  size_t bytes = 0;
  output_ = open_memstream(&text, &bytes);
  const absl::Status error = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    environment.output = output_;
    environment.on_step = [&](const StepMetrics& metrics) {
      if (bootstrap.rank() == 0) skipped_steps += metrics.skipped_steps;
    };
    return Train(bootstrap, config_, environment).status();
  });
  std::fclose(std::exchange(output_, nullptr));
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kOutOfRange,
                              AllOf(HasSubstr("both must be finite; layers were updated before that was "
                                              "known: use a smaller --lr, or more --warmup-steps"),
                                    Not(HasSubstr("skipped")))));
  EXPECT_THAT(std::string(text, bytes), Not(HasSubstr("skipped")));
  EXPECT_EQ(skipped_steps, 0);
}

TEST_F(TrainRun, NamesClippingAsARemedyWhetherItIsOnOrOff) {
  config_.optimizer.lr = 1e30;
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("or a smaller --clip-grad-norm")));
  config_.optimizer.clip_grad_norm = 0;
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("or a --clip-grad-norm above 0")));
}

TEST_F(TrainRun, EndsAtAnEvaluationWhoseLossIsNotFinite) {
  config_.optimizer.lr = 1e6;
  config_.eval.paths = config_.data.paths;
  config_.eval.interval = 1;
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("step 2: the loss on --eval-data is ")));
}

TEST_F(TrainRun, ExportsNoWeightsThatTheLastUpdateMadeInfinite) {
  config_.optimizer.lr = 1e39;  // Infinite in fp32.
  config_.optimizer.steps = 1;
  config_.output.export_folder = folder_ / "out";
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kOutOfRange,
                                    HasSubstr("step 1: the weights are not finite after the update")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TrainRun, SavesNoWeightsThatAnUpdateMadeInfinite) {
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.checkpoint.interval = 1;
  config_.optimizer.lr = 1e39;
  config_.optimizer.warmup_steps = 0;
  for (const bool async : {false, true}) {
    config_.checkpoint.async = async;
    EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kOutOfRange,
                                      HasSubstr("step 1: the weights are not finite after the update")));
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(config_.checkpoint.folder));
    EXPECT_TRUE(names.empty()) << names.front();
  }
}

}  // namespace
}  // namespace weft
