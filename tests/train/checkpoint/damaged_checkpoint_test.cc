// Checkpoints with damaged, missing or foreign files, and the choice of the newest one that is whole.
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_timeout.h"
#include "tests/train/checkpoint/checkpoint_fixture.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;

absl::Status OpenAndVerify(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return checkpoint.Verify();
}

TEST_F(CheckpointTest, DetectsFlippedBitsAndNamesTheFile) {
  ASSERT_OK(Save(ArrayCut::kByColumns, 3));
  ASSERT_OK(OpenAndVerify(Path(1)));
  std::mt19937 random(1);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Path(1))) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  for (int i = 0; i < 200; ++i) {
    const std::string name = names[static_cast<size_t>(i) % names.size()];
    const std::string path = absl::StrCat(Path(1), "/", name);
    const std::string content = ReadFile(path);
    std::string damaged = content;
    const size_t bit = random() % (content.size() * 8);
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), damaged);
    // The hashes in checkpoint.json are hexadecimal numbers in either case.
    const bool is_same_number = name == "checkpoint.json" && absl::ascii_isxdigit(content[bit / 8]) &&
                                absl::EqualsIgnoreCase(content, damaged);
    if (!is_same_number) {
      EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name))) << bit;
    }
    folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), content);
  }
  EXPECT_OK(OpenAndVerify(Path(1)));
}

TEST_F(CheckpointTest, DetectsEveryTruncationAndEveryMissingFile) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2));
  for (const std::string name : {"checkpoint.json", "model.safetensors", "config.json"}) {
    const std::string path = absl::StrCat(Path(1), "/", name);
    const std::string content = ReadFile(path);
    for (size_t bytes = 0; bytes < content.size(); bytes += 7) {
      folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), content.substr(0, bytes));
      EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
    }
    fs::remove(path);
    EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kNotFound, HasSubstr(name)));
    folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), content);
  }
}

TEST_F(CheckpointTest, RefusesFilesOfAnotherCheckpoint) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1}));
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), bootstrap.size());
    state.Fill(3);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(2)));
    return saver->Finish();
  }));
  fs::copy_file(Path(2) + "/model.safetensors", Path(1) + "/model.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors")));
}

TEST_F(CheckpointTest, ChoosesTheNewestUsableOneAndNamesTheOthers) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1, 2, 3}));
  const auto find = [&](std::vector<SkippedCheckpoint>& skipped) {
    std::string found;
    EXPECT_OK(OnRanks(3, [&](Bootstrap& bootstrap) -> absl::Status {
      std::vector<SkippedCheckpoint> own;
      WEFT_ASSIGN_OR_RETURN(const std::string path, FindCheckpoint(bootstrap, root(), own, kTestTimeout));
      if (bootstrap.rank() != 0) return absl::OkStatus();
      found = path;
      skipped = own;
      return absl::OkStatus();
    }));
    return found;
  };
  std::vector<SkippedCheckpoint> skipped;
  EXPECT_EQ(find(skipped), Path(3));
  EXPECT_TRUE(skipped.empty());
  // The last byte of the data, which no header names.
  const std::string model = ReadFile(Path(3) + "/model.safetensors");
  folder_.Write("checkpoints/step-00000003/model.safetensors", model.substr(0, model.size() - 1) + "!");
  EXPECT_EQ(find(skipped), Path(2));
  ASSERT_EQ(skipped.size(), 1);
  EXPECT_EQ(skipped[0].path, Path(3));
  EXPECT_THAT(skipped[0].reason, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors")));
}

TEST_F(CheckpointTest, PassesOverNoCheckpointThatMayBeWhole) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1, 2}));
  const std::string outside = folder_.Write("outside.json", ReadFile(Path(2) + "/config.json"));
  fs::remove(Path(2) + "/config.json");
  fs::create_symlink(outside, Path(2) + "/config.json");
  EXPECT_THAT(OnRanks(2,
                      [&](Bootstrap& bootstrap) -> absl::Status {
                        std::vector<SkippedCheckpoint> skipped;
                        return FindCheckpoint(bootstrap, root(), skipped, kTestTimeout).status();
                      }),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr(Path(2) + "/config.json"), HasSubstr("mend the cause, or name"))));
}

TEST_F(CheckpointTest, SaysThatNoCheckpointIsUsable) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1}));
  fs::remove(Path(1) + "/model.safetensors");
  EXPECT_THAT(OnRanks(2,
                      [&](Bootstrap& bootstrap) -> absl::Status {
                        std::vector<SkippedCheckpoint> skipped;
                        return FindCheckpoint(bootstrap, root(), skipped, kTestTimeout).status();
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("none is usable")));
}

TEST_F(CheckpointTest, FindsNothingInAnEmptyOrMissingFolder) {
  for (const std::string& folder : {root(), folder_.str()}) {
    EXPECT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
      std::vector<SkippedCheckpoint> skipped;
      WEFT_ASSIGN_OR_RETURN(const std::string path, FindCheckpoint(bootstrap, folder, skipped, kTestTimeout));
      EXPECT_EQ(path, "");
      return absl::OkStatus();
    }));
  }
}

TEST_F(CheckpointTest, DoesNotFollowLinksOutOfItsFolder) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1));
  const std::string outside = folder_.Write("outside.json", ReadFile(Path(1) + "/config.json"));
  fs::remove(Path(1) + "/config.json");
  fs::create_symlink(outside, Path(1) + "/config.json");
  EXPECT_THAT(OpenAndVerify(Path(1)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("config.json")));
}

}  // namespace
}  // namespace weft
