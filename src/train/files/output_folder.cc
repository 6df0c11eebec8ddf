#include "src/train/files/output_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/file_moves.h"
#include "src/train/files/folder_entries.h"
#include "weft/core/status.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr int kLockAttempts = 10;
constexpr int64_t kSpareBytes = 1 << 20;  // For folders, and files of a few lines.

absl::Status FolderError(int error, const std::string& path) {
  return ErrnoStatus(error, "write to the folder", path);
}

bool IsFolder(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

std::string ParentOf(const std::string& path) { return fs::path(path).parent_path(); }
std::string NameOf(const std::string& path) { return fs::path(path).filename(); }

// The start of the path of a staging folder beside `path`; nullopt if the parent is on another file system.
std::optional<std::string> StagingPrefixBeside(const std::string& path) {
  const std::string parent = ParentOf(path);
  struct stat own {};
  struct stat above {};
  if (parent == path || stat(path.c_str(), &own) != 0 || stat(parent.c_str(), &above) != 0)
    return std::nullopt;
  if (own.st_dev != above.st_dev) return std::nullopt;
  return absl::StrCat(parent, "/.", NameOf(path));
}

// Errors: the path is empty, or it is relative and the working folder has been removed.
absl::StatusOr<fs::path> AbsolutePath(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the path of the folder to write is empty: name one");
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (!error) return absolute;
  return absl::NotFoundError(absl::StrCat("cannot write to the folder '", path,
                                          "': the working folder has no path (", error.message(),
                                          "): change to a folder that exists, or give an absolute path"));
}

bool IsWorkingFolder(const std::string& path) {
  struct stat folder {};
  struct stat here {};
  return stat(path.c_str(), &folder) == 0 && stat(".", &here) == 0 && IsSame(folder, here);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Claim(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const fs::path absolute, AbsolutePath(path));
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(absolute, error);
  if (error) return FolderError(error.value(), path);
  if (!resolved.has_filename() && resolved.has_relative_path()) resolved = resolved.parent_path();
  std::unique_ptr<OutputFolder> folder(new OutputFolder(resolved));
  WEFT_RETURN_IF_ERROR(folder->Create());
  WEFT_RETURN_IF_ERROR(folder->Lock());
  folder->RestoreBackups();
  folder->RemoveLeftovers();
  if (faccessat(AT_FDCWD, folder->path_.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    return FolderError(errno, path);
  WEFT_RETURN_IF_ERROR(folder->Stage().status());
  folder->Discard();
  return folder;
}

OutputFolder::~OutputFolder() {
  Discard();
  for (auto folder = created_.rbegin(); folder != created_.rend(); ++folder) rmdir(folder->c_str());
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFolder::Create() {
  std::vector<std::string> missing;
  struct stat info {};
  for (std::string folder = path_; stat(folder.c_str(), &info) != 0; folder = ParentOf(folder)) {
    if (errno != ENOENT) return FolderError(errno, path_);
    missing.push_back(folder);
  }
  if (!S_ISDIR(info.st_mode)) return FolderError(ENOTDIR, path_);
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (mkdir(folder->c_str(), 0777) == 0) {
      created_.push_back(*folder);
    } else if (errno != EEXIST) {
      return ErrnoStatus(errno, "create the folder", path_);
    }
  }
  return absl::OkStatus();
}

absl::Status OutputFolder::CreateAgainIfRemoved() {
  struct stat info {};
  struct stat locked {};
  const bool exists = stat(path_.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return absl::OkStatus();
  const bool is_locked = fd_ >= 0 && fstat(fd_, &locked) == 0;
  if (exists && is_locked && IsSame(info, locked)) return absl::OkStatus();
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  WEFT_RETURN_IF_ERROR(Create());
  return Lock();
}

absl::Status OutputFolder::Lock() {
  // Another run may put a new folder in this place between the open and the lock.
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd_ < 0) return FolderError(errno, path_);
    const bool locked = flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK) break;
    struct stat opened {};
    struct stat present {};
    if (fstat(fd_, &opened) == 0 && stat(path_.c_str(), &present) == 0 && IsSame(opened, present)) {
      if (!locked) close(std::exchange(fd_, -1));
      return absl::OkStatus();
    }
    close(std::exchange(fd_, -1));
  }
  return absl::InvalidArgumentError(absl::StrCat("another run writes to the folder '", path_,
                                                 "': wait until it has ended, or name another one"));
}

// Does nothing without a lock, as RemoveLeftovers.
void OutputFolder::RestoreBackups() {
  if (fd_ < 0) return;
  for (const std::string& name : NamesIn(path_).value_or(Names{})) {
    if (!absl::StartsWith(name, kBackupPrefix)) continue;
    const std::string backup = InFolder(path_, name);
    const absl::StatusOr<bool> restored = RestoreBackup(path_, backup);
    if (!restored.ok()) {
      messages_.push_back(absl::StrCat("an export that was killed has left its old files in '", backup,
                                       "': move them back, or remove that folder (",
                                       restored.status().message(), ")"));
    } else if (*restored) {
      messages_.push_back(absl::StrCat("restored the files of '", path_,
                                       "', which an export had moved before it was killed"));
    }
  }
}

// Does nothing without a lock: the leftovers could be the files of a live run.
void OutputFolder::RemoveLeftovers() const {
  if (fd_ < 0) return;
  const std::string beside = absl::StrCat(".", NameOf(path_), kStagingPrefix);
  for (const auto& [folder, prefix] :
       {std::pair(ParentOf(path_), beside), std::pair(path_, std::string(kStagingPrefix))}) {
    for (const std::string& name : NamesIn(folder).value_or(Names{})) {
      if (absl::StartsWith(name, prefix)) RemoveTree(InFolder(folder, name));
    }
  }
}

absl::Status OutputFolder::CheckSpace(const char* what, const FileSizes& sizes) const {
  const int64_t needed = sizes.total + kSpareBytes;
  struct statvfs info {};
  if (statvfs(path_.c_str(), &info) != 0) return FolderError(errno, path_);
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (free < static_cast<double>(needed)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, " in '", path_, "' needs ", needed, " bytes, but only ",
                     static_cast<int64_t>(free), " are free: make room, or name a folder on another disk"));
  }
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(sizes.largest)) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " in '", path_, "' has a file of ", sizes.largest,
                                                     " bytes, but this process may write at most ",
                                                     static_cast<uint64_t>(limit.rlim_cur),
                                                     ": raise the limit with ulimit -f"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> OutputFolder::Stage() {
  WEFT_RETURN_IF_ERROR(CreateAgainIfRemoved());
  const std::string name = absl::StrCat(kStagingPrefix, UniqueSuffix());
  if (const auto beside = StagingPrefixBeside(path_)) {
    std::string staging = *beside + name;
    if (mkdir(staging.c_str(), 0777) == 0) return staging_ = std::move(staging);
  }
  std::string staging = absl::StrCat(path_, "/", name);
  if (mkdir(staging.c_str(), 0777) != 0) return FolderError(errno, path_);
  return staging_ = std::move(staging);
}

void OutputFolder::Discard() {
  if (!staging_.empty()) RemoveTree(std::exchange(staging_, ""));
}

absl::Status OutputFolder::Commit(const std::string& last,
                                  absl::FunctionRef<bool(const std::string&)> is_obsolete) {
  WEFT_ASSIGN_OR_RETURN(Names fresh, LastingNamesIn(staging_));
  WEFT_ASSIGN_OR_RETURN(const Names present, LastingNamesIn(path_));
  Names old;
  Names kept;
  for (const std::string& name : present) {
    const bool replaced = std::find(fresh.begin(), fresh.end(), name) != fresh.end();
    (replaced || is_obsolete(name) ? old : kept).push_back(name);
  }
  WEFT_RETURN_IF_ERROR(SyncFolder(staging_));
  if (!Replace(old, kept)) {
    // The old weights leave first, and the new ones come last.
    const auto is_last = [&](const std::string& name) { return name == last; };
    std::stable_partition(old.begin(), old.end(), is_last);
    std::stable_partition(fresh.begin(), fresh.end(), std::not_fn(is_last));
    WEFT_RETURN_IF_ERROR(MoveWithBackup(path_, {staging_, old, fresh}));
  }
  created_.clear();
  Discard();
  WEFT_RETURN_IF_ERROR(SyncFolder(path_));
  return SyncFolder(ParentOf(path_));
}

// Puts the staging folder in the place of this folder. Returns false, and changes nothing, if that is not
// possible.
bool OutputFolder::Replace(const Names& old, const Names& kept) const {
  struct stat info {};
  if (ParentOf(staging_) != ParentOf(path_) || IsWorkingFolder(path_) || stat(path_.c_str(), &info) != 0)
    return false;
  const auto is_backup = [](const std::string& name) { return absl::StartsWith(name, kBackupPrefix); };
  const Names present = NamesIn(path_).value_or(Names{});
  if (std::any_of(present.begin(), present.end(), is_backup)) return false;  // A backup stays where it is.
  size_t linked = 0;
  for (; linked < kept.size(); ++linked) {
    const std::string from = InFolder(path_, kept[linked]);
    if (IsFolder(from) || link(from.c_str(), InFolder(staging_, kept[linked]).c_str()) != 0) break;
  }
  const bool replaced = linked == kept.size() && chmod(staging_.c_str(), info.st_mode & 07777U) == 0 &&
                        MoveOrExchange(staging_, path_).ok();
  if (!replaced) {
    for (size_t i = 0; i < linked; ++i) unlink(InFolder(staging_, kept[i]).c_str());
    return false;
  }
  // After an exchange the staging folder has the old files. Files that were added meanwhile move to the new
  // folder.
  for (const std::string& name : LastingNamesIn(staging_).value_or(Names{})) {
    const std::string target = InFolder(path_, name);
    if (std::find(old.begin(), old.end(), name) == old.end() && !Exists(target)) {
      std::rename(InFolder(staging_, name).c_str(), target.c_str());
    }
  }
  return true;
}

}  // namespace weft
