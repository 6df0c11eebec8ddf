#include "src/launch/job_folder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft::internal {
namespace {

namespace fs = std::filesystem;

TEST(JobFolder, IsRemovedWithItsContent) {
  std::string path;
  {
    ASSERT_OK_AND_ASSIGN(const JobFolder folder, JobFolder::Create());
    path = folder.path();
    fs::create_directories(path + "/a/b");
    std::ofstream(path + "/a/b/c") << "x";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(JobFolder, HasANewNameEachTime) {
  ASSERT_OK_AND_ASSIGN(const JobFolder first, JobFolder::Create());
  ASSERT_OK_AND_ASSIGN(const JobFolder second, JobFolder::Create());
  EXPECT_NE(first.path(), second.path());
}

TEST(JobFolder, IsRemovedByItsLastHolder) {
  const TempFolder parent;
  const std::string path = parent / "job";
  absl::StatusOr<JobFolder> first = JobFolder::Join(path);
  ASSERT_OK(first);
  std::optional<JobFolder> holder(*std::move(first));
  { ASSERT_OK_AND_ASSIGN(const JobFolder second, JobFolder::Join(path)); }
  EXPECT_TRUE(fs::exists(path));
  holder.reset();
  EXPECT_FALSE(fs::exists(path));
}

TEST(JobFolder, RemovesAbandonedFolders) {
  const TempFolder parent;
  const std::string prefix = parent / ("weft-launch." + std::to_string(getuid()) + ".");
  fs::create_directories(prefix + "dead/ompi");
  fs::create_directories(parent / "weft-launch.other.user");
  fs::create_directories(parent / "unrelated");
  ASSERT_OK_AND_ASSIGN(const JobFolder own, JobFolder::Join(prefix + "own"));
  ASSERT_OK_AND_ASSIGN(const JobFolder alive, JobFolder::Join(prefix + "alive"));
  JobFolder::RemoveAbandoned(own.path());
  EXPECT_FALSE(fs::exists(prefix + "dead"));
  for (const std::string& path :
       {own.path(), alive.path(), parent / "unrelated", parent / "weft-launch.other.user"}) {
    EXPECT_TRUE(fs::exists(path)) << path;
  }
}

TEST(JobFolder, NamesTheFolderThatItCannotCreate) {
  EXPECT_THAT(JobFolder::Join("/proc/none/x"),
              ::weft::testing::StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("'/proc/none/x'")));
}

}  // namespace
}  // namespace weft::internal
