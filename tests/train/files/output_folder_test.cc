#include "src/train/files/output_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/file_size_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace {

constexpr int kDeath = 9;
int renames_before_death = 0;  // 0: no death.
std::function<void()> after_rename;

}  // namespace

// Replaces the function of the C library.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (renames_before_death > 0 && --renames_before_death == 0) _exit(kDeath);
  const auto result = static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  const int error = errno;
  if (after_rename) after_rename();
  errno = error;
  return result;
}

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::weft::testing::FileSizeLimit;
using ::weft::testing::StatusIs;

bool IsOld(const std::string& name) { return name == "old-shard"; }

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

class OutputFolderTest : public ::testing::Test {
 protected:
  std::unique_ptr<OutputFolder> Claim() { return OutputFolder::Claim(out_).value(); }

  // Stages the files "weights" and "config", and commits them.
  absl::Status Replace(OutputFolder& folder) {
    const std::string staging = folder.Stage().value();
    for (const char* name : {"weights", "config"}) std::ofstream(staging + "/" + name) << "new";
    return folder.Commit("weights", IsOld);
  }

  // As Replace. Expects that no rename lets a reader see only one of the new files.
  absl::Status ReplaceAtOnce(OutputFolder& folder) {
    const auto is_new = [this](const char* name) {
      std::ifstream file(out_ + "/" + name);
      std::string content;
      return file >> content && content == "new";
    };
    after_rename = [&] { EXPECT_EQ(is_new("weights"), is_new("config")); };
    absl::Status replaced = Replace(folder);
    after_rename = nullptr;
    return replaced;
  }

  void ExpectNew() {
    EXPECT_EQ(ReadFile(out_ + "/weights"), "new");
    EXPECT_EQ(ReadFile(out_ + "/config"), "new");
  }

  TempFolder folder_;
  std::string out_ = folder_ / "out";
};

TEST_F(OutputFolderTest, GetsItsFilesAtOnce) {
  const auto folder = Claim();
  EXPECT_TRUE(fs::is_empty(out_));
  const std::string staging = folder->Stage().value();
  EXPECT_TRUE(fs::is_empty(out_));
  folder->Discard();
  EXPECT_OK(ReplaceAtOnce(*folder));
  ExpectNew();
  EXPECT_THAT(NamesIn(folder_.str()), UnorderedElementsAre("out"));
}

TEST_F(OutputFolderTest, KeepsFilesThatTheRunDoesNotReplace) {
  for (const char* name : {"out/weights", "out/old-shard", "out/notes"}) folder_.Write(name, "old");
  fs::create_symlink("notes", out_ + "/link");
  fs::permissions(out_, fs::perms(0750));
  const auto folder = Claim();
  EXPECT_OK(ReplaceAtOnce(*folder));
  ExpectNew();
  EXPECT_THAT(NamesIn(out_), UnorderedElementsAre("weights", "config", "notes", "link"));
  EXPECT_EQ(ReadFile(out_ + "/notes"), "old");
  EXPECT_TRUE(fs::is_symlink(out_ + "/link"));
  EXPECT_EQ(fs::status(out_).permissions(), fs::perms(0750));
  EXPECT_THAT(NamesIn(folder_.str()), UnorderedElementsAre("out"));
}

TEST_F(OutputFolderTest, ReplacesFilesOneByOneIfThereAreFoldersBesideThem) {
  for (const char* name : {"out/weights", "out/old-shard", "out/more/notes"}) folder_.Write(name, "old");
  const auto folder = Claim();
  EXPECT_OK(Replace(*folder));
  ExpectNew();
  EXPECT_THAT(NamesIn(out_), UnorderedElementsAre("weights", "config", "more"));
  EXPECT_EQ(ReadFile(out_ + "/more/notes"), "old");
}

TEST_F(OutputFolderTest, MayBeTheWorkingFolder) {
  folder_.Write("out/notes", "old");
  const fs::path before = fs::current_path();
  fs::current_path(out_);
  const auto folder = OutputFolder::Claim(".").value();
  EXPECT_OK(Replace(*folder));
  EXPECT_EQ(ReadFile("weights"), "new");
  fs::current_path(before);
  EXPECT_THAT(NamesIn(out_), UnorderedElementsAre("weights", "config", "notes"));
}

TEST_F(OutputFolderTest, ReplacesLinksInsteadOfTheirTargets) {
  const std::string victim = folder_.Write("victim", "old");
  for (const bool with_folder : {false, true}) {
    fs::remove_all(out_);
    fs::create_directory(out_);
    fs::create_symlink(victim, out_ + "/weights");
    if (with_folder) fs::create_directory(out_ + "/more");
    const auto folder = Claim();
    EXPECT_OK(Replace(*folder));
    EXPECT_EQ(ReadFile(victim), "old");
    EXPECT_FALSE(fs::is_symlink(out_ + "/weights"));
  }
}

TEST_F(OutputFolderTest, RestoresTheOldFilesIfAMoveFails) {
  for (const char* name : {"out/weights", "out/more/notes"}) folder_.Write(name, "old");
  const auto folder = Claim();
  const std::string staging = folder->Stage().value();
  for (const char* name : {"weights", "config"}) std::ofstream(staging + "/" + name) << "new";
  // The folder appears between the listing and the move only here: the file cannot take its place.
  const auto is_old = [&](const std::string&) {
    fs::create_directories(out_ + "/config/in the way");
    return false;
  };
  EXPECT_FALSE(folder->Commit("weights", is_old).ok());
  EXPECT_EQ(ReadFile(out_ + "/weights"), "old");
  folder->Discard();
  EXPECT_THAT(NamesIn(out_), UnorderedElementsAre("weights", "more", "config"));
  EXPECT_THAT(NamesIn(folder_.str()), UnorderedElementsAre("out"));
}

TEST_F(OutputFolderTest, IsClaimedByOneRun) {
  auto first = Claim();
  EXPECT_THAT(OutputFolder::Claim(out_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another run writes to the folder")));
  EXPECT_OK(Replace(*first));
  first.reset();
  EXPECT_OK(OutputFolder::Claim(out_));
}

TEST_F(OutputFolderTest, IsMadeAndLockedAgainIfItIsRemovedDuringTheRun) {
  out_ = folder_ / "models/out";
  const auto folder = Claim();
  fs::remove_all(folder_ / "models");
  const std::string staging = folder->Stage().value();
  EXPECT_THAT(OutputFolder::Claim(out_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(out_)));
  folder->Discard();
  fs::remove_all(folder_ / "models");
  EXPECT_OK(ReplaceAtOnce(*folder));
  ExpectNew();
}

TEST_F(OutputFolderTest, IsNotWrittenIfAnotherRunHasMadeItAgain) {
  out_ = folder_ / "models/out";
  const auto folder = Claim();
  fs::remove_all(folder_ / "models");
  const auto other = Claim();
  EXPECT_THAT(folder->Stage().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another run writes to the folder")));
}

TEST_F(OutputFolderTest, LeavesNothingIfTheRunFails) {
  out_ = folder_ / "a/b/out";
  auto folder = Claim();
  EXPECT_OK(folder->Stage());
  folder.reset();
  EXPECT_EQ(folder_.FileCount(), 0);
}

TEST_F(OutputFolderTest, RemovesTheRemainsOfAKilledRun) {
  folder_.Write(".out.weft-new-123/weights", "partial");
  folder_.Write("out/.weft-new-123/weights", "partial");
  folder_.Write(".other.weft-new-123/weights", "of another folder");
  const auto folder = Claim();
  EXPECT_THAT(NamesIn(folder_.str()), UnorderedElementsAre("out", ".other.weft-new-123"));
  EXPECT_TRUE(fs::is_empty(out_));
}

// Kills the export at each of its renames in turn.
TEST_F(OutputFolderTest, IsRestoredAfterAnExportThatWasKilledBetweenTwoMoves) {
  int restored = 0;
  bool killed = true;
  for (int number = 1; killed; ++number) {
    fs::remove_all(out_);
    for (const char* name : {"out/weights", "out/old-shard", "out/more/notes"}) folder_.Write(name, "old");
    const pid_t child = fork();
    if (child == 0) {
      const auto folder = Claim();
      renames_before_death = number;
      const absl::Status replaced = Replace(*folder);
      _exit(replaced.ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed = WEXITSTATUS(status) == kDeath;
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    SCOPED_TRACE(absl::StrCat("killed at rename ", number));
    const auto folder = Claim();
    if (ReadFile(out_ + "/weights") == "old") {
      EXPECT_THAT(NamesIn(out_), UnorderedElementsAre("weights", "old-shard", "more"));
      restored += folder->messages().empty() ? 0 : 1;
    } else {
      ExpectNew();
      EXPECT_THAT(NamesIn(out_), UnorderedElementsAre("weights", "config", "more"));
      EXPECT_THAT(folder->messages(), IsEmpty());
    }
    EXPECT_EQ(ReadFile(out_ + "/more/notes"), "old");
    EXPECT_THAT(NamesIn(folder_.str()), UnorderedElementsAre("out"));
  }
  EXPECT_EQ(restored, 3);  // After one move, two, and three of four.
}

TEST_F(OutputFolderTest, NamesABackupThatItCannotRestore) {
  folder_.Write("out/.weft-old-1/weights", "old");
  const auto folder = Claim();
  EXPECT_THAT(folder->messages(),
              ElementsAre(HasSubstr(".weft-old-1': move them back, or remove that folder")));
  EXPECT_EQ(ReadFile(out_ + "/.weft-old-1/weights"), "old");
  EXPECT_OK(Replace(*folder));
  EXPECT_EQ(ReadFile(out_ + "/.weft-old-1/weights"), "old");
}

TEST_F(OutputFolderTest, NamesAPathThatCannotBeAFolder) {
  folder_.Write("file", "");
  EXPECT_THAT(OutputFolder::Claim(folder_ / "file").status().ToString(), HasSubstr("file'"));
  EXPECT_THAT(OutputFolder::Claim(folder_ / "file/out").status().ToString(), HasSubstr("file/out'"));
  EXPECT_THAT(OutputFolder::Claim("/proc/x").status().ToString(), HasSubstr("/proc/x"));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_FALSE(OutputFolder::Claim(folder_ / "loop").ok());
}

TEST_F(OutputFolderTest, NamesTheSpaceThatIsMissing) {
  const auto folder = Claim();
  EXPECT_OK(folder->CheckSpace("the export", {.total = 3000, .largest = 2000}));
  EXPECT_THAT(folder->CheckSpace("the export", {.total = int64_t{1} << 60, .largest = 2000}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1152921504607895552 bytes")));
}

TEST_F(OutputFolderTest, NamesALimitOfFileSizesThatIsTooLow) {
  const auto folder = Claim();
  const FileSizeLimit limit(1999);
  EXPECT_THAT(folder->CheckSpace("the export", {.total = 3000, .largest = 2000}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -f")));
  EXPECT_OK(folder->CheckSpace("the export", {.total = 3000, .largest = 1999}));
}

}  // namespace
}  // namespace weft
