#include "src/train/data/open_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <sys/resource.h>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

// Lets this process open no further descriptor while it lives.
class NoFreeDescriptors {
 public:
  NoFreeDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(close(lowest_free), 0);
    const rlimit limit = {static_cast<rlim_t>(lowest_free), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~NoFreeDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoFreeDescriptors(const NoFreeDescriptors&) = delete;
  NoFreeDescriptors& operator=(const NoFreeDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(OpenFiles, GiveTheirDescriptorsBackIfTheProcessHasNoMore) {
  const TempFolder folder;
  constexpr int kFiles = 3;
  std::vector<std::string> paths;
  for (int i = 0; i < kFiles; ++i) paths.push_back(folder.Write(absl::StrCat("file", i), absl::StrCat(i)));
  OpenFiles files;
  ASSERT_OK(files.Open(paths[0]).status());
  const NoFreeDescriptors limit;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kFiles; ++i) {
      ASSERT_OK_AND_ASSIGN(const auto file, files.Open(paths[static_cast<size_t>(i)]));
      ASSERT_OK_AND_ASSIGN(const std::string content, file->ReadAll(100));
      EXPECT_EQ(content, absl::StrCat(i));
    }
  }
}

TEST(OpenFiles, NameAFileThatCannotBeOpened) {
  const TempFolder folder;
  OpenFiles files;
  ASSERT_OK(files.Open(folder.Write("present", "x")).status());
  EXPECT_TRUE(absl::IsNotFound(files.Open(folder / "absent").status()));
}

}  // namespace
}  // namespace weft
