// Runs that are asked to stop while they evaluate.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <sys/syscall.h>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/train/train_run.h"

namespace {

constexpr const char* kEvaluationData = "stopped_evaluation.txt";
std::atomic<bool> stops_at_read = false;  // The next read of the evaluation data requests a stop.
std::atomic<bool> stop = false;

}  // namespace

// Replaces the function of the C library.
extern "C" ssize_t pread(int file, void* out, size_t bytes, off_t offset) {
  if (stops_at_read) {
    std::error_code unknown;
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), unknown);
    if (path.filename() == kEvaluationData) {
      stop = true;
      stops_at_read = false;
    }
  }
  return syscall(SYS_pread64, file, out, bytes, offset);
}

namespace weft {
namespace {

class StoppedEvaluation : public TrainRun {
 protected:
  StoppedEvaluation() {
    config_.eval.paths = {folder_.Write(kEvaluationData, SomeText())};  // Two passes for each of two ranks.
    config_.parallel.dp_shard = 2;
    config_.optimizer.lr_schedule = LrDecay::kConstant;
    config_.optimizer.steps = 4;
  }

  // A run whose last rank alone is asked to stop if `stops`: in the evaluation after step 2, or before the
  // only one of a run without steps.
  TrainReport RunOnTwoRanks(bool stops) {
    stop = false;
    stops_at_read = stops && config_.optimizer.steps == 0;
    TrainReport first;
    EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
      TrainEnvironment environment;
      if (bootstrap.rank() == 1) environment.stop = &stop;
      if (bootstrap.rank() == 0) {
        environment.on_step = [&](const StepMetrics& metrics) {
          steps_.push_back(metrics);
          stops_at_read = stops && metrics.step == 1;  // All ranks have evaluated after step 1.
        };
      }
      WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config_, environment));
      if (bootstrap.rank() == 0) first = report;
      return absl::OkStatus();
    }));
    return first;
  }

  std::vector<StepMetrics> steps_;  // Of rank 0, of all runs.
};

TEST_F(StoppedEvaluation, EndsTheRunAfterItsStepWithTheMetricsOfAnUninterruptedRun) {
  config_.eval.interval = 1;
  const TrainReport whole = RunOnTwoRanks(/*stops=*/false);
  const std::vector<StepMetrics> expected = std::exchange(steps_, {});
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.checkpoint.resume = "auto";
  const TrainReport interrupted = RunOnTwoRanks(/*stops=*/true);
  EXPECT_TRUE(interrupted.stopped);
  EXPECT_EQ(interrupted.steps, 2);
  EXPECT_EQ(interrupted.checkpoint, folder_ / "checkpoints/step-00000002");
  const TrainReport resumed = RunOnTwoRanks(/*stops=*/false);
  EXPECT_FALSE(resumed.stopped);
  EXPECT_EQ(resumed.weights_hash, whole.weights_hash);
  ASSERT_EQ(steps_.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(steps_[i].step, expected[i].step);
    EXPECT_EQ(steps_[i].loss, expected[i].loss);
    ASSERT_TRUE(steps_[i].eval_loss.has_value());
    EXPECT_EQ(steps_[i].eval_loss, expected[i].eval_loss);
  }
}

TEST_F(StoppedEvaluation, OfTheLastStepEndsAsWithoutTheRequest) {
  config_.eval.interval = 1;
  config_.optimizer.steps = 2;
  const TrainReport report = RunOnTwoRanks(/*stops=*/true);
  EXPECT_TRUE(stop);
  EXPECT_FALSE(report.stopped);
  EXPECT_TRUE(report.eval_loss.has_value());
}

TEST_F(StoppedEvaluation, WithoutAStepEndsBeforeAPassAndExportsNothing) {
  config_.optimizer.steps = 0;
  config_.output.export_folder = folder_ / "export";
  EXPECT_FALSE(RunOnTwoRanks(/*stops=*/false).stopped);
  std::filesystem::remove_all(folder_ / "export");
  const TrainReport report = RunOnTwoRanks(/*stops=*/true);
  EXPECT_TRUE(report.stopped);
  EXPECT_FALSE(report.eval_loss.has_value());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "export"));
}

}  // namespace
}  // namespace weft
