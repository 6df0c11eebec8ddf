#include "src/train/files/file_io.h"

#include <filesystem>
#include <set>
#include <string>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;

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

// Root may rename a file over /dev/null, which every program of the machine needs.
TEST(WriteWholeFile, ReplacesNoFifoAndNoDeviceAlsoThroughALink) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder / "fifo", folder / "link");
  std::filesystem::create_symlink("/dev/null", folder / "null");
  std::filesystem::create_symlink("/proc/self/fd/1", folder / "stdout");
  for (const char* name : {"fifo", "link", "null", "stdout"}) {
    const auto type = std::filesystem::symlink_status(folder / name).type();
    EXPECT_THAT(WriteWholeFile(folder / name, "content").message(), HasSubstr("give the name of a file"));
    EXPECT_EQ(std::filesystem::symlink_status(folder / name).type(), type);
  }
}

TEST(WriteWholeFile, NamesTheFileAndNotATemporaryOne) {
  const TempFolder folder;
  EXPECT_THAT(WriteWholeFile(folder / "none/file", "content").message(),
              "cannot write '" + (folder / "none/file") + "': No such file or directory");
}

TEST(WriteWholeFile, ReplacesALink) {
  const TempFolder folder;
  folder.Write("target", "kept");
  std::filesystem::create_symlink(folder / "target", folder / "link");
  std::filesystem::create_symlink(folder / "missing", folder / "dangling");
  for (const char* name : {"link", "dangling"}) {
    EXPECT_OK(WriteWholeFile(folder / name, "content"));
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / name)));
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "target"), 4U);
}

// Two runs may write to one folder, and a killed one leaves its files.
TEST(UniqueSuffix, IsNewEachTime) {
  std::set<std::string> suffixes;
  for (int i = 0; i < 1000; ++i) suffixes.insert(UniqueSuffix());
  EXPECT_EQ(suffixes.size(), 1000U);
}

}  // namespace
}  // namespace weft
