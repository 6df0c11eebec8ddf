// Steps of a resumed run: the files that it keeps open, and its skipped steps.
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <absl/strings/match.h>

#include "tests/train/train_run.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

class ResumedSteps : public TrainRun {
 protected:
  ResumedSteps() {
    config_.checkpoint.folder = folder_ / "checkpoints";
    config_.optimizer.lr_schedule = LrDecay::kConstant;
  }
};

// The paths of files that this process has open, of those that begin with `beginning`.
std::vector<std::string> OpenFilesWith(const std::string& beginning) {
  std::vector<std::string> open;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // The iterator's own descriptor may be gone.
    const std::string path = fs::read_symlink(entry.path(), closed);
    if (!closed && absl::StartsWith(path, beginning)) open.push_back(path);
  }
  return open;
}

// Fixture of a checkpoint after one step, which was skipped.
class ResumedStepsAfterASkip : public ResumedSteps {
 protected:
  ResumedStepsAfterASkip() {
    config_.parallel.param_dtype = DType::kF16;
    config_.optimizer.clip_grad_norm = 0;
    config_.optimizer.loss_scale = "1e30";  // All gradients overflow.
    config_.optimizer.max_skipped_steps = 1;
    config_.optimizer.steps = 1;
    EXPECT_EQ(Run({1, 2}).report.skipped_steps, 1);
    config_.checkpoint.resume = "auto";
    config_.optimizer.loss_scale = "1024";
    config_.optimizer.steps = 2;
  }
};

TEST_F(ResumedStepsAfterASkip, AreRefusedIfFewerSkipsAreAllowed) {
  config_.optimizer.max_skipped_steps = 0;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("--max-skipped-steps 0: the checkpoint '"),
                                          HasSubstr("step-00000001' is after 1 skipped step: give at "
                                                    "least so many, or --resume an earlier"))));
  config_.optimizer.max_skipped_steps = 1;
  EXPECT_EQ(Run({1, 2}).report.skipped_steps, 1);
}

TEST_F(ResumedStepsAfterASkip, AreAllowedWithUpdatesInBackward) {
  config_.optimizer.max_skipped_steps = 0;
  config_.optimizer.in_backward = true;
  EXPECT_EQ(Run({1, 2}).report.skipped_steps, 1);
  // The run after that counts them again.
  config_.optimizer.in_backward = false;
  config_.optimizer.steps = 3;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("step-00000002' is after 1 skipped step")));
}

TEST_F(ResumedSteps, BeginAfterTheFilesOfTheCheckpointAreClosed) {
  config_.optimizer.steps = 2;
  Run({1, 1});
  config_.checkpoint.resume = "auto";
  config_.optimizer.steps = 4;
  const std::string checkpoints = fs::canonical(config_.checkpoint.folder).string() + "/step-";
  {
    const auto checkpoint = Checkpoint::Open(checkpoints + "00000002");
    EXPECT_OK(checkpoint);
    EXPECT_THAT(OpenFilesWith(checkpoints), ::testing::Not(::testing::IsEmpty()));
  }
  int64_t steps = 0;
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    environment.on_step = [&](const StepMetrics&) {
      ++steps;
      EXPECT_THAT(OpenFilesWith(checkpoints), ::testing::IsEmpty());
    };
    return Train(bootstrap, config_, environment).status();
  }));
  EXPECT_EQ(steps, 2);
}

}  // namespace
}  // namespace weft
