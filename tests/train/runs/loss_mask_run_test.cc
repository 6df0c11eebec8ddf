// Runs in which only some tokens have a loss.
#include <atomic>
#include <filesystem>

#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// A mask for SomeText in which about a third of the tokens have a loss, in runs of different lengths.
std::string SomeMask() {
  std::string mask(SomeText().size(), '\0');
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<char>((i * i / 50) % 3 == 0);
  return mask;
}

TEST_F(TrainRun, FollowsTheLossesOfOneRankWithALossMask) {
  folder_.Write("text.txt.mask", SomeMask());
  config_.data.loss_mask = true;
  config_.eval.paths = config_.data.paths;
  ExpectLossesOfOneRank({{1, 2}, {2, 2}, {1, 1, 2}});
  const double eval_loss = Run({1, 1}).report.eval_loss.value();
  EXPECT_NEAR(Run({2, 1, 2}).report.eval_loss.value() / eval_loss, 1, 1e-5);
}

TEST_F(TrainRun, WeighsTargetsAlikeWhetherTheyAreMaskedInOneRunOrInTwo) {
  config_.optimizer.steps = 1;
  const Result all = Run({1, 2});
  EXPECT_FALSE(all.steps[0].loss_tokens.has_value());
  double sum = 0;
  int64_t targets = 0;
  for (const bool inverted : {false, true}) {
    std::string mask = SomeMask();
    if (inverted) {
      for (char& byte : mask) byte = static_cast<char>(1 - byte);
    }
    folder_.Write("text.txt.mask", mask);
    config_.data.loss_mask = true;
    const StepMetrics step = Run({1, 2}).steps[0];
    sum += step.loss * static_cast<double>(*step.loss_tokens);
    targets += *step.loss_tokens;
  }
  EXPECT_EQ(targets, all.steps[0].tokens);
  EXPECT_NEAR(sum / static_cast<double>(targets), all.steps[0].loss, 1e-6);
}

TEST_F(TrainRun, GivesTheSameBitsWithAMaskOfAllTokens) {
  const uint64_t without = Run({1, 2}).report.weights_hash;
  folder_.Write("text.txt.mask", std::string(SomeText().size(), '\1'));
  config_.data.loss_mask = true;
  EXPECT_EQ(Run({1, 2}).report.weights_hash, without);
}

TEST_F(TrainRun, HasNoLossInAStepWithoutTargetsAndRefusesDataWithoutTargets) {
  std::string mask(SomeText().size(), '\0');
  char& middle = mask[mask.size() / 2];  // No sequence of the first step has this token.
  middle = '\1';
  folder_.Write("text.txt.mask", mask);
  config_.data.loss_mask = true;
  const Result result = Run({1, 2});
  EXPECT_EQ(result.steps[0].loss, 0);
  EXPECT_EQ(result.steps[0].grad_norm, 0);
  config_.eval.paths = config_.data.paths;
  EXPECT_OK(RunError(2));
  middle = '\0';
  mask.back() = '\1';  // No whole sequence of an evaluation has this token.
  folder_.Write("eval.txt", SomeText());
  folder_.Write("eval.txt.mask", mask);
  config_.eval.paths = {folder_ / "eval.txt"};
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("--eval-data: no token has a loss")));
  mask.back() = '\0';
  mask.front() = '\1';  // The first token is never a target.
  folder_.Write("eval.txt.mask", mask);
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("eval.txt.mask' has no byte 1")));
  config_.eval.paths.clear();
  folder_.Write("text.txt.mask", mask);
  EXPECT_THAT(RunError(2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("text.txt.mask' has no byte 1")));
}

// A byte that neither a step nor the comparison of ranks reads.
TEST_F(TrainRun, NamesABadByteLateInAMaskBeforeItTrains) {
  config_.data.paths = {folder_.Write("long.txt", std::string(200'000, 'a'))};
  config_.data.shuffle = false;
  config_.data.loss_mask = true;
  std::string mask(200'000, '\1');
  mask[197'000] = '\2';
  folder_.Write("long.txt.mask", mask);
  EXPECT_THAT(RunError(2),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("long.txt.mask' has the byte 2 at position 197000: a mask has")));
}

// The part of the first rank has no loss.
TEST_F(TrainRun, TakesAMaskInWhichOnlyTheLastTokenHasALoss) {
  std::string mask(SomeText().size(), '\0');
  mask.back() = '\1';
  folder_.Write("text.txt.mask", mask);
  config_.data.loss_mask = true;
  EXPECT_OK(RunError(2));
}

TEST_F(TrainRun, AnnouncesALongCheckOfMasksAndStopsInIt) {
  config_.data.loss_mask = true;
  config_.data.paths = {folder_.Write("data.txt", "")};
  for (const std::string& name : {config_.data.paths[0], folder_.Write("data.txt.mask", "")}) {
    std::filesystem::resize_file(name, (int64_t{1} << 30) + 4);  // Takes no room on the disk.
  }
  char* text = nullptr;
  size_t bytes = 0;
  output_ = open_memstream(&text, &bytes);
  const std::atomic<bool> stop{true};
  const absl::Status stopped = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    environment.stop = &stop;
    environment.output = output_;
    return Train(bootstrap, config_, environment).status();
  });
  EXPECT_THAT(stopped, StatusIs(absl::StatusCode::kCancelled,
                                HasSubstr("stopped before all loss masks were checked")));
  std::fclose(output_);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  EXPECT_EQ(std::string(text, bytes), "data     checks 1.0 GiB of loss masks\n");
}

}  // namespace
}  // namespace weft
