#include "src/cli/commands/launch_command.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::StatusIs;

CheckpointConfig In(const std::string& folder) {
  CheckpointConfig config;
  config.folder = folder;
  return config;
}

void Save(const TempFolder& parent, int64_t step) {
  parent.Write("ck/" + CheckpointName(step) + "/checkpoint.json", "{}");
  parent.Write("ck/latest", CheckpointName(step) + "\n");
}

TEST(RestartArguments, ResumeFromACheckpointOfThisLaunch) {
  const TempFolder parent;
  CheckpointConfig config = In(parent / "ck");
  config.resume = "other/" + CheckpointName(2);
  const RestartArguments arguments(config, /*ranks_are_local=*/true);
  EXPECT_THAT(arguments().value(), IsEmpty());
  Save(parent, 4);
  EXPECT_THAT(arguments().value(), ElementsAre("--resume", "auto"));
}

// The attempt has left metrics, which only a run with --resume moves away.
TEST(RestartArguments, ResumeAfterAnAttemptThatSavedNothing) {
  const TempFolder parent;
  const RestartArguments arguments(In(parent / "ck"), /*ranks_are_local=*/true);
  EXPECT_THAT(arguments().value(), ElementsAre("--resume", "auto"));
}

// The folder has checkpoints of an earlier run. The user may have named one of them, or none.
TEST(RestartArguments, DoNotResumeFromCheckpointsOfEarlierRuns) {
  const TempFolder parent;
  Save(parent, 4);
  Save(parent, 8);
  const RestartArguments arguments(In(parent / "ck"), /*ranks_are_local=*/true);
  EXPECT_THAT(arguments().value(), IsEmpty());
  Save(parent, 12);
  EXPECT_THAT(arguments().value(), ElementsAre("--resume", "auto"));
}

// A run that went back to an earlier step has come to the newest one again.
TEST(RestartArguments, ResumeFromASecondSaveOfTheNewestStep) {
  const TempFolder parent;
  Save(parent, 8);
  CheckpointConfig config = In(parent / "ck");
  config.resume = parent / "ck/" + CheckpointName(4);
  const RestartArguments arguments(config, /*ranks_are_local=*/true);
  EXPECT_THAT(arguments().value(), IsEmpty());
  const std::string saved = parent / "ck/" + CheckpointName(8);
  parent.Write("staged/checkpoint.json", "{}");
  std::filesystem::remove_all(saved);
  std::filesystem::rename(parent / "staged", saved);
  EXPECT_THAT(arguments().value(), ElementsAre("--resume", "auto"));
}

// The ranks may have saved in a folder that this host does not see.
TEST(RestartArguments, AreUnknownWithoutTheFolderOfOtherHosts) {
  const TempFolder parent;
  CheckpointConfig config = In(parent / "ck");
  for (const char* resume : {"", "auto"}) {
    config.resume = resume;
    EXPECT_OK(RestartArguments(config, /*ranks_are_local=*/false)());
  }
  config.resume = "other/" + CheckpointName(2);
  EXPECT_THAT(RestartArguments(config, /*ranks_are_local=*/true)().value(), IsEmpty());
  const RestartArguments arguments(config, /*ranks_are_local=*/false);
  EXPECT_THAT(arguments(), StatusIs(absl::StatusCode::kNotFound,
                                    HasSubstr("the folder --checkpoint-dir " + config.folder)));
  std::filesystem::create_directory(config.folder);
  EXPECT_THAT(arguments().value(), IsEmpty());
  Save(parent, 4);
  EXPECT_THAT(arguments().value(), ElementsAre("--resume", "auto"));
}

}  // namespace
}  // namespace weft
