// Sizes of the files of checkpoints: their own limit, and that of the process.
#include <filesystem>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/file_size_limit.h"
#include "tests/train/checkpoint/checkpoint_fixture.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::weft::testing::FileSizeLimit;
using ::weft::testing::StatusIs;

TEST_F(CheckpointTest, SplitsFilesAtTheirLimit) {
  options_.max_file_bytes = 100;
  ASSERT_OK(Save(ArrayCut::kByRows, 3));
  EXPECT_TRUE(fs::exists(Path(1) + "/model-00002-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(Path(1) + "/model.safetensors.index.json"));
  EXPECT_OK(Load(ArrayCut::kByColumns, 2));
}

TEST_F(CheckpointTest, MayBeLargerThanTheLimitOfASingleFile) {
  constexpr int kFiles = 12;
  constexpr int64_t kLimit = 4000;
  options_.max_file_bytes = kLimit / 2;
  EXPECT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays arrays(ArrayCut::kByRows, 0, 1);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    CheckpointState state = arrays.ToSave(1);
    for (int i = 1; i < kFiles; ++i) state.arrays.push_back({absl::StrCat("model", i), "", arrays.Shards()});
    const FileSizeLimit limit(kLimit);
    EXPECT_OK(saver->CheckSpace(10 * kLimit));
    WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
    return saver->Finish();
  }));
  uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(Path(1))) bytes += file.file_size();
  EXPECT_GT(bytes, 2 * kLimit);
}

TEST_F(CheckpointTest, IsRefusedAtOnceIfAFileOfItExceedsTheLimit) {
  EXPECT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays arrays(ArrayCut::kByRows, 0, 1);
    options_.max_file_bytes = 2000;
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    const FileSizeLimit limit(400);
    for (const absl::Status& status : {saver->CheckSpace(10'000), saver->Start(arrays.ToSave(1))})
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -f")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace weft
