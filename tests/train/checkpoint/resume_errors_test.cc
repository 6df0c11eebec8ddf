// Errors for a run that differs from that of the checkpoint.
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/train/checkpoint/resume_fixture.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

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

TEST_F(ResumeTest, RefusesToSaveInACheckpoint) {
  config_.optimizer.steps = kStop;
  config_.checkpoint.folder = root();
  Run({1, 2});
  const std::string checkpoint = root() + "/step-00000004";
  for (const char* resume : {"", "auto"}) {
    config_.checkpoint.resume = resume;
    for (const std::string& folder : {checkpoint, checkpoint + "/sub"}) {
      config_.checkpoint.folder = folder;
      EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr("--checkpoint-dir " + folder + ": "),
                                              HasSubstr("give --resume " + checkpoint +
                                                        " and --checkpoint-dir " + root() + ";"))));
    }
  }
  EXPECT_FALSE(fs::exists(checkpoint + "/sub"));
}

TEST_F(ResumeTest, NamesTheStepOfACheckpointInAFolderOfAnotherStep) {
  config_.optimizer.steps = kStop;
  config_.checkpoint.folder = root();
  Run({1, 2});
  const std::string wrong = root() + "/step-00000002";
  fs::rename(root() + "/step-00000004", wrong);
  config_.optimizer.steps = kSteps;
  for (const std::string& resume : {std::string("auto"), wrong}) {
    config_.checkpoint.resume = resume;
    EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("'" + wrong +
                                                "' holds step 4: rename it to step-00000004, or remove it")));
  }
  fs::rename(wrong, folder_ / "best");  // Not the name of a step.
  config_.checkpoint.resume = folder_ / "best";
  EXPECT_EQ(Run({1, 2}).report.checkpoint, root() + "/step-00000008");
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
  EXPECT_THAT(resumed(roots[0], roots[1], /*automatic=*/false),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("after step 8 (checksum ")));
  // The run would save into the folder of rank 0.
  EXPECT_THAT(resumed(roots[0], roots[1], /*automatic=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("the folder of checkpoints is ", roots[0], " on rank 0, but ",
                                              roots[1], " on rank 1"))));
  fs::copy(roots[0], folder_ / "copy", fs::copy_options::recursive);
  EXPECT_OK(resumed(roots[0] + step_4, folder_ / ("copy" + step_4), /*automatic=*/false));
}

TEST_F(ResumeTest, NamesAPathWithoutACheckpoint) {
  config_.checkpoint.resume = folder_ / "none";
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kNotFound, HasSubstr("--resume")));
  config_.checkpoint.resume = folder_.str();
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no checkpoint")));
}

}  // namespace
}  // namespace weft
