// Runs that are stopped and go on from a checkpoint: the bits of an uninterrupted run on the same mesh, its
// losses on another one, and errors for a run that differs.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/resource.h>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/match.h>

#include "tests/train/train_run.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

class ResumeTest : public TrainRun {
 protected:
  ResumeTest() {
    config_.data.batch_size = 12;
    config_.optimizer.steps = kSteps;
    config_.optimizer.lr_schedule = LrDecay::kConstant;
  }
  static constexpr int64_t kSteps = 8;
  static constexpr int64_t kStop = 4;

  std::string root() const { return folder_ / "checkpoints"; }
  // The run that goes on after kStop steps of `before`.
  Result Interrupted(const Mesh& before, const Mesh& after) {
    fs::remove_all(root());
    config_.checkpoint.folder = root();
    config_.checkpoint.resume.clear();
    config_.optimizer.steps = kStop;
    Run(before);
    config_.checkpoint.resume = "auto";
    config_.optimizer.steps = kSteps;
    Result result = Run(after);
    config_.checkpoint = {};
    return result;
  }
};

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

TEST_F(ResumeTest, RefusesToMixRuns) {
  config_.checkpoint.folder = root();
  Run({1, 2});
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give --resume auto")));
  config_.checkpoint.resume = "auto";
  const TrainConfig same = config_;
  const auto expect_refused = [&](const std::string& name, absl::StatusCode code) {
    EXPECT_THAT(RunError(2), StatusIs(code, HasSubstr(name)));
    config_ = same;
  };
  config_.optimizer.lr = 0.5;
  expect_refused("--lr is 0.5, but the checkpoint has 0.01", absl::StatusCode::kInvalidArgument);
  config_.seed = 4;
  expect_refused("--seed", absl::StatusCode::kInvalidArgument);
  config_.data.batch_size = 6;
  expect_refused("--batch-size is 6, but the checkpoint has 12", absl::StatusCode::kInvalidArgument);
  config_.data.seq_len = 8;
  expect_refused("--seq-len", absl::StatusCode::kInvalidArgument);
  config_.model.dim = 32;
  expect_refused("--model", absl::StatusCode::kInvalidArgument);
  config_.data.paths = {folder_.Write("other.txt", SomeText() + SomeText())};
  expect_refused("data of --data", absl::StatusCode::kDataLoss);
}

TEST_F(ResumeTest, RefusesToGoOnFromAnotherRunInAFolderWithCheckpoints) {
  const std::string other = folder_ / "other";
  config_.optimizer.steps = kStop;
  config_.checkpoint.folder = root();
  Run({1, 2});
  config_.checkpoint.folder = other;
  Run({1, 2});
  config_.checkpoint.folder = root();
  config_.optimizer.steps = kSteps;
  for (const std::string& resume : {other, other + "/step-00000004"}) {
    config_.checkpoint.resume = resume;
    EXPECT_THAT(RunError(2),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("--checkpoint-dir " + root()), HasSubstr("--resume " + resume),
                               HasSubstr("name another folder"), HasSubstr("--resume auto"))));
  }
  EXPECT_FALSE(fs::exists(root() + "/step-00000008"));
  // By a link, and into a folder without checkpoints.
  fs::create_directory_symlink(root(), folder_ / "link");
  config_.checkpoint.resume = folder_ / "link/step-00000004";
  EXPECT_EQ(Run({1, 2}).report.checkpoint, root() + "/step-00000008");
  config_.checkpoint.resume = other;
  config_.checkpoint.folder = folder_ / "new";
  EXPECT_EQ(Run({1, 2}).report.checkpoint, folder_ / "new/step-00000008");
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

TEST_F(ResumeTest, RefusesToMixRunsOfDifferentAttention) {
  config_.checkpoint.folder = root();
  Run({1, 2});
  config_.checkpoint.resume = "auto";
  config_.attention.kind = AttentionKind::kDsa;
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--attention is dsa, but the checkpoint was written without it")));
  fs::remove_all(root());
  Run({1, 2});
  const std::pair<const char*, std::function<void(AttentionConfig&)>> changes[] = {
      {"--dsa-topk is 8, but the checkpoint has 512", [](AttentionConfig& a) { a.top_k = 8; }},
      {"--dsa-index-heads is 2", [](AttentionConfig& a) { a.index_heads = 2; }},
      {"--dsa-index-dim is 8", [](AttentionConfig& a) { a.index_dim = 8; }},
      {"--dsa-warmup-steps is 2", [](AttentionConfig& a) { a.warmup_steps = 2; }},
      {"--dsa-loss-coef is 0.5", [](AttentionConfig& a) { a.loss_coef = 0.5; }},
      {"--attention is not given, but the checkpoint has dsa", [](AttentionConfig& a) { a = {}; }},
  };
  for (const auto& [message, change] : changes) {
    const AttentionConfig same = config_.attention;
    change(config_.attention);
    EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    config_.attention = same;
  }
}

TEST_F(ResumeTest, RefusesACheckpointThatIsAnotherOneOnSomeRank) {
  const std::string roots[] = {folder_ / "of_rank_0", folder_ / "of_rank_1"};
  config_.checkpoint.interval = 2;
  config_.checkpoint.keep = 0;
  for (const std::string& root : roots) {
    config_.checkpoint.folder = root;
    Run({1, 2});
    config_.parallel.param_dtype = DType::kBF16;  // The second run has other weights.
  }
  const auto resumed = [&](const std::string& path_of_0, const std::string& path_of_1, bool automatic) {
    return RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
      const std::string& path = bootstrap.rank() == 0 ? path_of_0 : path_of_1;
      TrainConfig config = config_;
      config.checkpoint = {};
      config.checkpoint.folder = automatic ? path : "";
      config.checkpoint.resume = automatic ? "auto" : path;
      return Train(bootstrap, config, {}).status();
    });
  };
  const std::string step_2 = "/step-00000002", step_4 = "/step-00000004";
  EXPECT_THAT(resumed(roots[0] + step_4, roots[1] + step_4, /*automatic=*/false),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("rank 0 has '" + roots[0] + step_4 + "', after step 4 (checksum "),
                             HasSubstr("rank 1 has '" + roots[1] + step_4 + "', after step 4 (checksum "),
                             HasSubstr("on a file system that all ranks share"))));
  EXPECT_THAT(resumed(roots[0] + step_2, roots[0] + step_4, /*automatic=*/false),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("after step 2 (checksum "), HasSubstr("after step 4 (checksum "))));
  for (const bool automatic : {false, true}) {
    EXPECT_THAT(resumed(roots[0], roots[1], automatic),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("after step 8 (checksum ")));
  }
  fs::copy(roots[0], folder_ / "copy", fs::copy_options::recursive);
  EXPECT_OK(resumed(roots[0] + step_4, folder_ / ("copy" + step_4), /*automatic=*/false));
}

TEST_F(ResumeTest, NamesAPathWithoutACheckpoint) {
  config_.checkpoint.resume = folder_ / "none";
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kNotFound, HasSubstr("--resume")));
  config_.checkpoint.resume = folder_.str();
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no checkpoint")));
}

TEST_F(ResumeTest, AppendsToTheMetricsWithoutRepeatedLines) {
  config_.output.metrics_file = folder_ / "run.jsonl";
  config_.checkpoint.folder = root();
  config_.optimizer.steps = kStop;
  Run({1, 2});
  // Lines of steps that were not saved, the last one torn.
  std::ofstream(config_.output.metrics_file, std::ios::app) << "{\"step\":5,\"loss\":1}\n{\"step\":6,\"lo";
  config_.checkpoint.resume = "auto";
  config_.optimizer.steps = kSteps;
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)),
              HasSubstr(absl::StrCat("metrics  the lines of steps after 4 are now in ",
                                     config_.output.metrics_file, ".1\n")));
  std::ifstream lines(config_.output.metrics_file);
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(line, HasSubstr(absl::StrCat("{\"step\":", ++step, ",")));
    EXPECT_THAT(line, HasSubstr("rss_bytes"));
  }
  EXPECT_EQ(step, kSteps);
  // The file could have been that of another run.
  EXPECT_EQ(ReadFile(config_.output.metrics_file + ".1"), "{\"step\":5,\"loss\":1}\n{\"step\":6,\"lo");
  EXPECT_FALSE(fs::exists(config_.output.metrics_file + ".2"));
}

TEST_F(ResumeTest, KeepsTheMetricsOfARunThatSavedNothing) {
  config_.output.metrics_file = folder_.Write("run.jsonl", "{\"step\":1}\n");
  config_.checkpoint.folder = root();
  config_.checkpoint.resume = "auto";
  Run({1, 2});
  EXPECT_EQ(ReadFile(folder_ / "run.jsonl.1"), "{\"step\":1}\n");
  EXPECT_THAT(ReadFile(folder_ / "run.jsonl"), HasSubstr("{\"step\":8,"));
}

// As under `weft launch`, if rank 0 of the last attempt does not end at once.
TEST_F(ResumeTest, WaitsForARankThatStillHasTheCheckpoints) {
  config_.checkpoint.folder = root();
  config_.checkpoint.resume = "auto";
  fs::create_directory(root());
  const int lock = open(root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  TrainEnvironment environment;
  const auto train = [&] {
    return RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
      return Train(bootstrap, config_, environment).status();
    });
  };
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another run writes to the folder"));
  EXPECT_THAT(train(), refused);
  environment.lock_wait = absl::Milliseconds(1);
  EXPECT_THAT(train(), refused);
  environment.lock_wait = absl::Minutes(1);
  const std::atomic<bool> stop = true;
  environment.stop = &stop;
  EXPECT_THAT(train(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped by a signal while")));
  environment.stop = nullptr;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::thread reader([&] {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> text(fdopen(ends[0], "r"), std::fclose);
    bool is_locked = true;
    for (std::array<char, 1000> line; std::fgets(line.data(), line.size(), text.get()) != nullptr;) {
      if (!is_locked || std::string_view(line.data()).find("waiting  for a rank") != 0) continue;
      close(lock);
      is_locked = false;
    }
    if (is_locked) close(lock);
  });
  environment.output = fdopen(ends[1], "w");
  EXPECT_OK(train());
  std::fclose(environment.output);
  reader.join();
}

// As on a full disk that has no room for a line of metrics, but another one for checkpoints.
TEST_F(ResumeTest, SavesWhatARunHasDoneWhoseMetricsCannotBeWritten) {
  config_.output.metrics_file = folder_ / "run.jsonl";
  config_.checkpoint.folder = root();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto limit_second_line = [&](const StepMetrics& metrics) {  // Called before the line is written.
    const rlimit low = {1, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, metrics.step == 2 ? &low : &before);
  };
  const absl::Status status = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    if (bootstrap.rank() == 0) environment.on_step = limit_second_line;
    return Train(bootstrap, config_, environment).status();
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(absl::StrCat("cannot write '", config_.output.metrics_file, "'")),
                    HasSubstr("steps from 2 on are missing there")));
  const std::string lines = ReadFile(config_.output.metrics_file);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  ASSERT_OK_AND_ASSIGN(const auto saved, ListCheckpoints(root()));
  EXPECT_THAT(saved, ElementsAre(CheckpointName(3)));
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
