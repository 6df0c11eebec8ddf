// Commits of checkpoints on file systems without exchanges of folders, without locks, and on a device that
// delays its answer.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/checkpoint/checkpoint_fixture.h"
#include "tests/train/train_run.h"

namespace {

constexpr int kDeath = 9;
std::atomic<int> exchange_error = 0;        // errno of exchanges; 0: they are made.
std::atomic<int> renames_before_death = 0;  // Counts down after an exchange has failed. 0: no death.
std::atomic<bool> has_locks = true;
std::atomic<int> removal_error = 0;  // errno of the rename that begins to remove a checkpoint; 0: it is made.
std::atomic<int> replacement_error =
    0;  // errno of the rename to the place of a moved checkpoint; 0: it is made.
std::atomic<bool> keeps_files = false;  // Files and folders cannot be removed.

// While it is held, fsync waits.
std::mutex device;
std::condition_variable device_answers;
bool device_hangs = false;
std::set<std::string> flushed;  // Names of the files that were flushed.

void SetHanging(bool hangs) {
  const std::lock_guard lock(device);
  device_hangs = hangs;
  device_answers.notify_all();
}

}  // namespace

// Replace the functions of the C library.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if (flags != 0 && exchange_error != 0) {
    errno = exchange_error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (renames_before_death > 0 && --renames_before_death == 0) _exit(kDeath);
  if (removal_error != 0 && std::strstr(to, "/.removing-") != nullptr) {
    errno = removal_error;
    return -1;
  }
  const auto is_staged = [](const char* path) { return std::strstr(path, "/.saving-") != nullptr; };
  if (replacement_error != 0 && is_staged(from) && !is_staged(to) && access(to, F_OK) != 0) {
    errno = replacement_error;
    return -1;
  }
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

extern "C" int unlinkat(int folder, const char* name, int flags) noexcept {
  if (!keeps_files) return static_cast<int>(syscall(SYS_unlinkat, folder, name, flags));
  errno = EBUSY;
  return -1;
}

extern "C" int flock(int file, int operation) noexcept {
  if (has_locks) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}

extern "C" int fsync(int file) {
  std::unique_lock lock(device);
  device_answers.wait(lock, [] { return !device_hangs; });
  std::error_code unknown;
  flushed.insert(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), unknown).filename());
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::weft::testing::StatusIs;

class CommitTest : public CheckpointTest {
 protected:
  ~CommitTest() override {
    exchange_error = 0;
    renames_before_death = 0;
    has_locks = true;
    removal_error = 0;
    replacement_error = 0;
    keeps_files = false;
    SetHanging(false);
  }
};

TEST_F(CommitTest, ReplacesACheckpointWithoutExchanges) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1, 2}));
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    exchange_error = error;
    folder_.Write("checkpoints/step-00000002/model.safetensors", "damaged");
    ASSERT_OK(Save(ArrayCut::kByRows, 2, {2}, /*parent=*/1));
    EXPECT_OK(Load(ArrayCut::kByRows, 2, 2));
    EXPECT_THAT(Names(), ElementsAre("latest", "step-00000001", "step-00000002"));
  }
}

TEST_F(CommitTest, NamesTheCheckpointThatItCannotReplace) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1}));
  exchange_error = EIO;
  EXPECT_THAT(Save(ArrayCut::kByRows, 2, {1}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot replace '" + Path(1))));
  EXPECT_OK(Load(ArrayCut::kByRows, 2, 1));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000001"));
}

TEST_F(CommitTest, RestoresTheCheckpointThatItCannotReplaceWithoutExchanges) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1}));
  exchange_error = EINVAL;
  replacement_error = EIO;
  EXPECT_THAT(Save(ArrayCut::kByRows, 2, {1}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot replace '" + Path(1))));
  EXPECT_OK(Load(ArrayCut::kByRows, 2, 1));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000001"));
}

// Kills the run at each rename of a save that replaces a checkpoint.
TEST_F(CommitTest, HasAWholeCheckpointAfterAKillBetweenTwoRenames) {
  exchange_error = EINVAL;
  bool killed = true;
  int number = 0;
  while (killed) {
    ++number;
    ASSERT_LT(number, 20);
    fs::remove_all(root());
    ASSERT_OK(Save(ArrayCut::kByRows, 1, {1}));
    const pid_t child = fork();
    if (child == 0) {
      renames_before_death = number;
      _exit(Save(ArrayCut::kByRows, 1, {1}).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed = WEXITSTATUS(status) == kDeath;
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    ASSERT_OK(OnRanks(1, [&](Bootstrap& bootstrap) {
      return CheckpointSaver::Open(bootstrap, root(), options_).status();
    }));
    EXPECT_OK(Load(ArrayCut::kByRows, 1, 1)) << number;
    EXPECT_THAT(Names(), Not(Contains(StartsWith(".")))) << number;
  }
  EXPECT_GT(number, 4);
}

TEST_F(CommitTest, KeepsTheFilesOfOtherSavesWithoutLocks) {
  const char* files[] = {".saving-step-00000002-1/model.safetensors", ".removing-step-00000001-1/latest",
                         ".replaced-step-00000004-1/model.safetensors"};
  folder_.Write("checkpoints/step-00000004/model.safetensors", "of another run");
  for (const char* file : files) folder_.Write(std::string("checkpoints/") + file, "of another run");
  has_locks = false;
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {3}));
  for (const char* file : files) EXPECT_TRUE(fs::exists(root() + "/" + file)) << file;
}

TEST_F(CommitTest, NamesACheckpointThatItCannotRestoreWithoutLocks) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1, {1}));
  const std::string aside = root() + "/.replaced-step-00000001-1";
  fs::rename(Path(1), aside);
  has_locks = false;
  EXPECT_THAT(Save(ArrayCut::kByRows, 2, {2}),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("'" + aside + "' is the checkpoint step-00000001"),
                             HasSubstr("rename the folder to step-00000001"))));
  fs::rename(aside, Path(1));
  EXPECT_OK(Save(ArrayCut::kByRows, 2, {2}));
}

TEST_F(CommitTest, WarnsOnceOfAnOldCheckpointThatItCannotRemove) {
  options_.keep = 1;
  ASSERT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, 0, 1);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    const auto warnings_of_save = [&](int64_t step) {
      EXPECT_OK(saver->Start(state.ToSave(step)));
      EXPECT_OK(saver->Finish());
      return saver->TakeWarnings();
    };
    EXPECT_THAT(warnings_of_save(1), IsEmpty());
    removal_error = EACCES;
    EXPECT_THAT(warnings_of_save(2),
                ElementsAre(AllOf(HasSubstr("cannot remove '" + Path(1) + "': Permission denied"),
                                  HasSubstr("remove it yourself"))));
    EXPECT_THAT(warnings_of_save(3), ElementsAre(HasSubstr("'" + Path(2) + "'")));
    EXPECT_THAT(Names(), ElementsAre("latest", "step-00000001", "step-00000002", "step-00000003"));
    removal_error = ENOENT;  // Another process has removed it.
    EXPECT_THAT(warnings_of_save(4), IsEmpty());
    removal_error = 0;
    EXPECT_THAT(warnings_of_save(5), IsEmpty());
    EXPECT_THAT(Names(), ElementsAre("latest", "step-00000005"));
    return absl::OkStatus();
  }));
}

TEST_F(TrainRun, GoesOnIfAnOldCheckpointCannotBeRemoved) {
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.checkpoint.interval = 1;
  config_.checkpoint.keep = 1;
  removal_error = EACCES;
  const std::string printed = Printed({1, 1}, NodeMap::OneNode(1));
  removal_error = 0;
  for (const char* old : {"step-00000001", "step-00000002"}) {
    EXPECT_THAT(printed, ContainsRegex(absl::StrCat("warning  cannot remove '.*/checkpoints/", old,
                                                    "': Permission denied")));
  }
}

TEST_F(CommitTest, WarnsOnceOfRemainsAndTriesAgainToRemoveThem) {
  options_.keep = 1;
  folder_.Write("checkpoints/.saving-step-00000001-1/model.safetensors", "of a killed save");
  keeps_files = true;
  ASSERT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, 0, 1);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_THAT(saver->removed(), IsEmpty());
    EXPECT_THAT(saver->TakeWarnings(),
                ElementsAre(HasSubstr("cannot remove '" + root() + "/.saving-step-00000001-1'")));
    const auto warnings_of_save = [&](int64_t step) {
      EXPECT_OK(saver->Start(state.ToSave(step)));
      EXPECT_OK(saver->Finish());
      return saver->TakeWarnings();
    };
    EXPECT_THAT(warnings_of_save(1), IsEmpty());
    EXPECT_THAT(warnings_of_save(2),
                ElementsAre(HasSubstr("cannot remove '" + root() + "/.removing-step-00000001-")));
    EXPECT_THAT(warnings_of_save(3), ElementsAre(HasSubstr("/.removing-step-00000002-")));
    keeps_files = false;
    EXPECT_THAT(warnings_of_save(4), IsEmpty());
    EXPECT_THAT(Names(), ElementsAre("latest", "step-00000004"));
    return absl::OkStatus();
  }));
}

TEST_F(CommitTest, FlushesFilesToWhichNoRankWrites) {
  flushed.clear();
  Parameter empty;
  empty.name = "empty";
  empty.shape = {0};
  ASSERT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    CheckpointState state;
    state.step = 1;
    state.arrays = {{"nothing", "", {{&empty, {0, 0, 0, 1, 0, 0}, nullptr, nullptr}}}};
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
    return saver->Finish();
  }));
  const std::lock_guard lock(device);
  EXPECT_THAT(flushed, Contains("nothing.safetensors"));
}

TEST_F(CommitTest, LeavesTheFilesToACommitThatTheDeviceDelays) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1, {1}));
  ASSERT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, 0, 1);
    options_.timeout = absl::Milliseconds(100);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(2)));
    while (!saver->CanAdvance()) std::this_thread::yield();  // The data are written.
    SetHanging(true);
    EXPECT_THAT(saver->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("the device")));
    return absl::OkStatus();
  }));
  const auto held = [&] {
    const std::vector<std::string> names = Names();
    const auto name = std::find_if(names.begin(), names.end(),
                                   [](const std::string& text) { return text.rfind(".saving-", 0) == 0; });
    return name == names.end() ? "" : root() + "/" + *name + "/model.safetensors";
  };
  EXPECT_TRUE(fs::exists(held()));
  SetHanging(false);
  while (!held().empty()) std::this_thread::yield();
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000001"));
}

}  // namespace
}  // namespace weft
