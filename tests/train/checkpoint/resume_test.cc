// Runs that are stopped and go on from a checkpoint: the bits of an uninterrupted run on the same mesh, and
// its losses on another one.
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/train/checkpoint/resume_fixture.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

TEST_F(ResumeTest, GivesTheBitsOfAnUninterruptedRun) {
  for (const bool async : {false, true}) {
    for (const Mesh mesh : {Mesh{1, 1}, Mesh{1, 3}, Mesh{2, 2}, Mesh{1, 2, 2}, Mesh{4, 1}}) {
      const Result whole = Run(mesh);
      config_.checkpoint.async = async;
      const Result resumed = Interrupted(mesh, mesh);
      EXPECT_EQ(resumed.report.weights_hash, whole.report.weights_hash);
      EXPECT_EQ(resumed.report.steps, kSteps);
      ASSERT_EQ(resumed.steps.size(), kSteps - kStop);
      EXPECT_EQ(resumed.steps[0].step, kStop + 1);
      EXPECT_EQ(resumed.steps[0].loss, whole.steps[kStop].loss);
    }
  }
}

TEST_F(ResumeTest, GivesTheBitsOfAnUninterruptedRunWithEveryKindOfSharding) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool zero_copy : {true, false}) {
      for (const bool over_replicas : {true, false}) {
        config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
        config_.parallel.zero_copy = zero_copy;
        config_.parallel.shard_optimizer_over_replicas = over_replicas;
        const Mesh mesh{2, 2};
        EXPECT_EQ(Interrupted(mesh, mesh).report.weights_hash, Run(mesh).report.weights_hash);
      }
    }
  }
}

TEST_F(ResumeTest, GivesTheBitsOfAnUninterruptedRunWithSparseAttention) {
  config_.attention.kind = AttentionKind::kDsa;
  config_.attention.top_k = 5;
  // A run that stops in the warm-up, at its end, and after it.
  for (const int64_t warmup_steps : {kStop + 1, kStop, int64_t{1}}) {
    config_.attention.warmup_steps = warmup_steps;
    for (const Mesh mesh : {Mesh{1, 3}, Mesh{2, 2}}) {
      const Result whole = Run(mesh);
      const Result resumed = Interrupted(mesh, mesh);
      EXPECT_EQ(resumed.report.weights_hash, whole.report.weights_hash);
      EXPECT_EQ(resumed.steps[0].indexers->loss, whole.steps[kStop].indexers->loss);
    }
  }
}

TEST_F(ResumeTest, GivesTheBitsOfAnUninterruptedRunWithEachOptimizer) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMuon}) {
    config_.optimizer.kind = kind;
    config_.optimizer.momentum = 0.9;
    const uint64_t whole = Run({1, 4}).report.weights_hash;
    EXPECT_EQ(Interrupted({1, 4}, {2, 2}).report.weights_hash, whole);
  }
}

TEST_F(ResumeTest, TakesFlagsOfTheOptimizerThatStateTheirDefaults) {
  config_.optimizer.kind = OptimizerKind::kMuon;
  config_.checkpoint.folder = root();
  const uint64_t hash = Run({1, 1}).report.weights_hash;
  config_.checkpoint.resume = "auto";
  config_.optimizer.momentum = MuonOptions().momentum;
  config_.optimizer.nesterov = true;
  config_.optimizer.adamw_lr = config_.optimizer.lr;
  config_.optimizer.muon_lr_scale = MuonLrScale::kOriginal;
  EXPECT_EQ(Run({1, 1}).report.weights_hash, hash);
}

TEST_F(ResumeTest, RefusesACheckpointOfAnotherOptimizer) {
  config_.optimizer.kind = OptimizerKind::kMuon;
  config_.optimizer.steps = 1;
  config_.checkpoint.folder = root();
  Run({1, 1});
  config_.checkpoint.resume = "auto";
  config_.optimizer.kind = OptimizerKind::kAdamW;
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("--optimizer is adamw, but the checkpoint has muon")));
}

TEST_F(ResumeTest, FollowsTheLossesOfAnUninterruptedRunOnAnotherMesh) {
  const Result whole = Run({1, 1});
  const Mesh meshes[] = {{1, 4}, {1, 2}, {1, 3}, {1, 1}, {2, 2}, {1, 2, 2}, {1, 4}};
  for (size_t i = 0; i + 1 < std::size(meshes); ++i) {
    config_.parallel.zero_copy = i % 2 == 0;
    const Result resumed = Interrupted(meshes[i], meshes[i + 1]);
    ASSERT_EQ(resumed.steps.size(), kSteps - kStop);
    for (size_t step = 0; step < resumed.steps.size(); ++step) {
      EXPECT_NEAR(resumed.steps[step].loss / whole.steps[kStop + step].loss, 1, 1e-4) << i;
    }
  }
}

TEST_F(ResumeTest, SavesAtIntervalsAndTheLastStep) {
  config_.checkpoint.folder = root();
  config_.checkpoint.interval = 3;
  config_.checkpoint.keep = 0;
  for (const bool async : {false, true}) {
    fs::remove_all(root());
    config_.checkpoint.async = async;
    const Result result = Run({1, 2});
    EXPECT_EQ(result.report.checkpoint, root() + "/step-00000008");
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root()));
    EXPECT_THAT(names, ::testing::ElementsAre("step-00000008", "step-00000006", "step-00000003"));
  }
}

TEST_F(ResumeTest, SavesWhenAskedTo) {
  config_.checkpoint.folder = root();
  config_.checkpoint.keep = 0;
  std::atomic<bool> save{true};
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    TrainEnvironment environment;
    if (bootstrap.rank() == 1) environment.save = &save;
    return Train(bootstrap, config_, environment).status();
  }));
  EXPECT_FALSE(save);
  EXPECT_TRUE(fs::exists(root() + "/step-00000001"));
}

TEST_F(ResumeTest, SavesWhenItIsStopped) {
  const uint64_t whole = Run({1, 2}).report.weights_hash;
  config_.checkpoint.folder = root();
  const std::atomic<bool> stop{true};
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    TrainEnvironment environment;
    environment.stop = &stop;
    WEFT_ASSIGN_OR_RETURN(const TrainReport report, Train(bootstrap, config_, environment));
    EXPECT_TRUE(report.stopped);
    EXPECT_EQ(report.checkpoint, root() + "/step-00000001");
    return absl::OkStatus();
  }));
  config_.checkpoint.resume = "auto";
  EXPECT_EQ(Run({1, 2}).report.weights_hash, whole);
}

TEST_F(ResumeTest, StartsAtStepZeroInAnEmptyFolderAndSaysSo) {
  config_.checkpoint.folder = root();
  config_.checkpoint.resume = "auto";
  EXPECT_THAT(Printed({1, 1}, NodeMap::OneNode(1)), HasSubstr("starting at step 0"));
}

TEST_F(ResumeTest, DoesNothingMoreAfterTheLastStep) {
  const uint64_t whole = Run({1, 2}).report.weights_hash;
  config_.checkpoint.folder = root();
  Run({1, 2});
  config_.checkpoint.resume = "auto";
  const Result again = Run({1, 3});
  EXPECT_EQ(again.report.weights_hash, whole);
  EXPECT_TRUE(again.steps.empty());
}

TEST_F(ResumeTest, GoesOnFromAGivenCheckpoint) {
  const uint64_t whole = Run({1, 2}).report.weights_hash;
  config_.checkpoint.folder = root();
  config_.checkpoint.interval = 2;
  config_.checkpoint.keep = 0;
  Run({1, 2});
  config_.checkpoint.resume = root() + "/step-00000002";
  const Result resumed = Run({1, 2});
  EXPECT_EQ(resumed.steps.size(), kSteps - 2);
  EXPECT_EQ(resumed.report.weights_hash, whole);
  // Without a folder for new checkpoints.
  config_.checkpoint = {};
  config_.checkpoint.resume = root();
  EXPECT_TRUE(Run({1, 2}).steps.empty());
}

TEST_F(ResumeTest, KeepsTheCheckpointFromWhichItWentOnBeforeLaterOnesOfTheRunThatItLeft) {
  config_.checkpoint.folder = root();
  config_.checkpoint.interval = 2;
  Run({1, 2});  // Keeps 4, 6 and 8.
  config_.checkpoint.resume = root() + "/step-00000004";
  config_.checkpoint.interval = 5;
  Run({1, 2});
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root()));
  EXPECT_THAT(names, ::testing::ElementsAre("step-00000008", "step-00000005", "step-00000004"));
}

TEST_F(ResumeTest, SaysThatChangedStepsChangeTheLearningRates) {
  config_.checkpoint.folder = root();
  for (const LrDecay schedule : {LrDecay::kConstant, LrDecay::kCosine}) {
    fs::remove_all(root());
    config_.optimizer.lr_schedule = schedule;
    config_.checkpoint.resume.clear();
    config_.optimizer.steps = kStop;
    Run({1, 1});
    config_.checkpoint.resume = "auto";
    EXPECT_THAT(Printed({1, 1}, NodeMap::OneNode(1)), Not(HasSubstr("--steps is")));
    config_.optimizer.steps = kSteps;
    const std::string printed = Printed({1, 1}, NodeMap::OneNode(1));
    const bool says = absl::StrContains(
        printed, "--steps is 8, but the checkpoint has 4: the learning rates of --lr-schedule cosine follow");
    EXPECT_EQ(says, schedule == LrDecay::kCosine) << printed;
    EXPECT_EQ(absl::StrContains(printed, "--steps is"), says) << printed;
  }
}

TEST_F(ResumeTest, ReportsOnlyTheCheckpointsThatItHasSaved) {
  config_.checkpoint.folder = root();
  Run({1, 2});
  config_.checkpoint.folder = folder_ / "new";
  config_.checkpoint.resume = root();
  EXPECT_EQ(Run({1, 2}).report.checkpoint, "");
}

TEST_F(ResumeTest, TracesTheStepsThatAreLeftOfTheTrace) {
  config_.checkpoint.folder = root();
  config_.output.trace_file = folder_ / "trace.json";
  config_.optimizer.steps = kStop;
  Run({1, 2});
  config_.checkpoint.resume = "auto";
  config_.output.trace_steps = "3:4";
  config_.optimizer.steps = 5;
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)),
              HasSubstr("trace.json is not written: the run did none of the steps"));
  config_.output.trace_steps = "3:7";
  config_.optimizer.steps = kSteps;
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)), HasSubstr("trace of steps 6 to 7 in"));
}

TEST_F(ResumeTest, CountsTheStepsThatWereSkippedBefore) {
  config_.checkpoint.folder = root();
  config_.optimizer.lr = 1e9;
  config_.optimizer.clip_grad_norm = 0;
  config_.optimizer.max_skipped_steps = 100;
  config_.optimizer.steps = 4;
  const Result first = Run({1, 2});
  ASSERT_GT(first.report.skipped_steps, 0);
  config_.checkpoint.resume = "auto";
  config_.optimizer.steps = 5;
  EXPECT_EQ(Run({1, 2}).report.skipped_steps, first.report.skipped_steps + 1);
}

TEST_F(ResumeTest, ACheckpointIsAModelFolder) {
  config_.checkpoint.folder = root();
  const uint64_t trained = Run({1, 2}).report.weights_hash;
  config_.checkpoint = {};
  config_.model = {};
  config_.model.hf_model = root();
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("name one of them, such as " + root() + "/step-00000008")));
  config_.model.hf_model = root() + "/step-00000008";
  config_.optimizer.lr = 0;
  config_.optimizer.weight_decay = 0;
  config_.optimizer.steps = 1;
  EXPECT_EQ(Run({1, 1}).report.weights_hash, trained);
}

}  // namespace
}  // namespace weft
