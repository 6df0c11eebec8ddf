#include "src/train/files/file_io.h"

#include <filesystem>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;

// Somebody else may have made the file, or a link to a file of the user, since its name was chosen.
TEST(File, IsNewOrAnErrorAndFollowsNoLink) {
  const TempFolder folder;
  EXPECT_OK(File::CreateNew(folder / "new").status());
  folder.Write("taken", "content");
  EXPECT_THAT(File::CreateNew(folder / "taken").status().message(), HasSubstr("File exists"));
  std::filesystem::create_symlink(folder / "taken", folder / "link");
  EXPECT_THAT(File::CreateNew(folder / "link"), Not(IsOk()));
  std::filesystem::create_symlink(folder / "missing", folder / "dangling");
  EXPECT_THAT(File::CreateNew(folder / "dangling"), Not(IsOk()));
  EXPECT_FALSE(std::filesystem::exists(folder / "missing"));
  EXPECT_EQ(std::filesystem::file_size(folder / "taken"), 7U);
}

// Two runs may write to one folder, and a killed one leaves its files.
TEST(UniqueSuffix, IsNewEachTime) {
  std::set<std::string> suffixes;
  for (int i = 0; i < 1000; ++i) suffixes.insert(UniqueSuffix());
  EXPECT_EQ(suffixes.size(), 1000U);
}

}  // namespace
}  // namespace weft
