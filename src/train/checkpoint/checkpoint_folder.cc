#include "src/train/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <system_error>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "src/train/checkpoint/manifest.h"
#include "src/train/files/file_io.h"
#include "src/train/files/file_moves.h"
#include "src/train/files/folder_entries.h"
#include "weft/core/status.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kStaging = ".saving-";     // Files of a save that is under way.
constexpr const char* kRemoving = ".removing-";  // A checkpoint that is being removed.
constexpr const char* kReplaced = ".replaced-";  // A checkpoint that another one of its step replaces.
constexpr const char* kLatest = "latest";
constexpr int64_t kMaxLatestBytes = 16 << 20;

// If `name` is that of a checkpoint, sets `step` and returns true.
bool ParseName(const std::string& name, int64_t& step) {
  absl::string_view digits = name;
  return absl::ConsumePrefix(&digits, kPrefix) && absl::SimpleAtoi(digits, &step) && step >= 0 &&
         CheckpointName(step) == name;
}

// Does nothing if `name` is not there.
void MoveToFront(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) std::rotate(names.begin(), found, found + 1);
}

// Name of the checkpoint in the name of a folder that ReplaceInSteps has moved away; empty for other names.
std::string ReplacedName(const std::string& name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, kReplaced)) return "";
  std::string replaced(rest.substr(0, rest.rfind('-')));
  return IsCheckpointName(replaced) ? replaced : "";
}

// An error if a checkpoint is only there as the folder to which ReplaceInSteps has moved it. `names`: those
// in `folder`.
absl::Status CheckNoneIsMissing(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string replaced = ReplacedName(name);
    if (replaced.empty() || Exists(InFolder(folder, replaced))) continue;
    return absl::DataLossError(absl::StrCat(
        "'", InFolder(folder, name), "' is the checkpoint ", replaced,
        ", which a killed save has moved away. The file system has no locks, so a live run could "
        "be saving there: if there is none, rename the folder to ",
        replaced));
  }
  return absl::OkStatus();
}

// As MoveOrExchange, by renames alone. A run that is killed between two of them leaves the checkpoint in a
// hidden folder, from which Claim restores it.
absl::Status ReplaceInSteps(const std::string& from, const std::string& folder, const std::string& name) {
  const std::string to = InFolder(folder, name);
  const std::string aside = InFolder(folder, absl::StrCat(kReplaced, name, "-", UniqueSuffix()));
  if (std::rename(to.c_str(), aside.c_str()) != 0) return ErrnoStatus(errno, "replace", to);
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    std::rename(aside.c_str(), to.c_str());
    return ErrnoStatus(error, "replace", to);
  }
  return std::rename(aside.c_str(), from.c_str()) == 0 ? absl::OkStatus()
                                                       : ErrnoStatus(errno, "remove", aside);
}

}  // namespace

bool IsCheckpointName(const std::string& name) {
  int64_t step = 0;
  return ParseName(name, step);
}

absl::Status CheckIsNoCheckpoint(const std::string& folder) {
  if (Exists(InFolder(folder, kManifestName))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", folder, "' is a checkpoint, which other weights would damage: name another folder"));
  }
  const absl::StatusOr<std::vector<std::string>> checkpoints = ListCheckpoints(folder);
  if (!checkpoints.ok() || checkpoints->empty()) return absl::OkStatus();  // A writer reports other faults.
  return absl::InvalidArgumentError(
      absl::StrCat("'", folder, "' has checkpoints, as ", checkpoints->front(), ": name another folder"));
}

std::string CheckpointAround(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (error) return "";  // The writer reports the fault.
  if (!path.has_filename()) path = path.parent_path();
  if (Exists(path / kManifestName)) return path;  // A copy may have any name.
  for (; path.has_relative_path(); path = path.parent_path()) {
    if (!IsCheckpointName(path.filename())) continue;
    if (Exists(path / kManifestName) || Exists(path.parent_path() / kLatest)) return path;
  }
  return "";
}

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%08d", kPrefix, step); }

absl::StatusOr<std::shared_ptr<CheckpointFolder>> CheckpointFolder::Claim(const std::string& path) {
  if (const std::string checkpoint = CheckpointAround(path); !checkpoint.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "' is a checkpoint, inside of one, or has the name of one ('", checkpoint,
        "'), which a run removes with all that is in it: name the folder of that checkpoint, or another"));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<OutputFolder> claim, OutputFolder::Claim(path));
  std::shared_ptr<CheckpointFolder> folder(new CheckpointFolder(std::move(claim)));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder->path()));
  if (!folder->claim_->is_locked()) {  // The remains could be the files of a live run.
    WEFT_RETURN_IF_ERROR(CheckNoneIsMissing(folder->path(), names));
    return folder;
  }
  const MutexLock lock(folder->commit_);
  for (const std::string& name : names) {
    if (const std::string replaced = ReplacedName(name); !replaced.empty()) {
      const std::string to = InFolder(folder->path(), replaced);
      if (!Exists(to) && std::rename(InFolder(folder->path(), name).c_str(), to.c_str()) == 0) continue;
    } else if (!absl::StartsWith(name, kStaging) && !absl::StartsWith(name, kRemoving) &&
               !IsPartialFile(name, kLatest)) {
      continue;
    }
    const std::string remains = InFolder(folder->path(), name);
    if (folder->RemoveHidden(remains)) folder->removed_.push_back(remains);
  }
  return folder;
}

absl::Status CheckpointFolder::CheckSpace(const FileSizes& sizes) const {
  return claim_->CheckSpace("a checkpoint", sizes);
}

absl::StatusOr<std::string> CheckpointFolder::Stage(int64_t step) {
  std::string staged = InFolder(path(), absl::StrCat(kStaging, CheckpointName(step), "-", UniqueSuffix()));
  if (mkdir(staged.c_str(), 0777) != 0) return ErrnoStatus(errno, "create the folder", staged);
  return staged;
}

void CheckpointFolder::Discard(const std::string& staged) { RemoveTree(staged); }

absl::Status CheckpointFolder::Commit(const std::string& staged, const Place& place,
                                      const std::atomic<bool>& abandoned) {
  const std::string name = CheckpointName(place.step);
  absl::Status status = SyncFolder(staged);
  const MutexLock lock(commit_);
  if (status.ok() && abandoned) status = absl::CancelledError("the save was abandoned before its commit");
  if (status.ok()) status = MoveOrExchange(staged, InFolder(path(), name));
  if (absl::IsUnimplemented(status)) status = ReplaceInSteps(staged, path(), name);
  if (status.ok()) status = SyncFolder(path());
  RemoveHidden(staged);  // After an exchange this is the replaced checkpoint.
  WEFT_RETURN_IF_ERROR(status);
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, ListCheckpoints(path()));
  // The parent and those before it come ahead of the later ones that the training left.
  const auto found =
      place.parent ? std::find(names.begin(), names.end(), CheckpointName(*place.parent)) : names.end();
  std::rotate(names.begin(), found, names.end());
  MoveToFront(names, name);
  std::vector<std::string> old;
  if (const auto kept = static_cast<size_t>(place.keep); kept != 0 && names.size() > kept) {
    old.assign(names.begin() + static_cast<std::ptrdiff_t>(kept), names.end());
    names.resize(kept);
  }
  WEFT_RETURN_IF_ERROR(WriteWholeFile(InFolder(path(), kLatest), absl::StrJoin(names, "\n") + "\n"));
  WEFT_RETURN_IF_ERROR(SyncFolder(path()));
  for (const std::string& remains : std::exchange(remains_, {})) RemoveHidden(remains);
  for (const std::string& checkpoint : old) RemoveCheckpoint(checkpoint);
  return absl::OkStatus();
}

// The checkpoint stays if it cannot be renamed, and the next commit tries again.
void CheckpointFolder::RemoveCheckpoint(const std::string& name) {
  const std::string checkpoint = InFolder(path(), name);
  const std::string hidden = InFolder(path(), absl::StrCat(kRemoving, name, "-", UniqueSuffix()));
  // Renames the folder first, so that a killed removal leaves no incomplete checkpoint.
  if (std::rename(checkpoint.c_str(), hidden.c_str()) == 0) {
    RemoveHidden(hidden);
  } else if (errno != ENOENT) {
    WarnAbout(checkpoint, errno);
  }
}

// Returns true if the folder is gone. If it is not, the next commit tries again.
bool CheckpointFolder::RemoveHidden(const std::string& path) {
  const std::error_code error = RemoveTree(path);
  if (!error) return true;
  remains_.insert(path);
  WarnAbout(path, error.value());
  return false;
}

void CheckpointFolder::WarnAbout(const std::string& path, int error) {
  const MutexLock lock(warnings_mutex_);
  if (!warned_.insert(path).second) return;
  warnings_.push_back(
      absl::StrCat(ErrnoStatus(error, "remove", path).message(), ": remove it yourself to free its space"));
}

std::vector<std::string> CheckpointFolder::TakeWarnings() {
  const MutexLock lock(warnings_mutex_);
  return std::exchange(warnings_, {});
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = NamesIn(folder);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  WEFT_RETURN_IF_ERROR(names.status());
  std::set<std::pair<int64_t, std::string>> found;  // Steps and names.
  for (std::string& name : *names) {
    int64_t step = 0;
    if (ParseName(name, step)) found.emplace(step, std::move(name));
  }
  std::vector<std::string> sorted;
  sorted.reserve(found.size());
  const absl::StatusOr<std::string> latest = ReadWholeFile(InFolder(folder, kLatest), kMaxLatestBytes);
  if (!latest.ok() && !absl::IsNotFound(latest.status())) {
    return absl::Status(latest.status().code(),
                        absl::StrCat(latest.status().message(),
                                     ": remove it, and the checkpoints count by their steps, or mend it"));
  }
  if (latest.ok()) {
    for (const absl::string_view line : absl::StrSplit(*latest, '\n')) {
      const std::string name(line);
      int64_t step = 0;
      if (ParseName(name, step) && found.erase({step, name}) == 1) sorted.push_back(name);
    }
  }
  for (auto rest = found.rbegin(); rest != found.rend(); ++rest) sorted.push_back(rest->second);
  return sorted;
}

}  // namespace weft
