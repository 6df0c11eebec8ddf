#include "src/train/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>

#include "src/train/checkpoint/manifest.h"
#include "src/train/files/file_io.h"
#include "src/train/files/folder_entries.h"
#include "weft/core/status.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kStaging = ".saving-";     // Files of a save that is under way.
constexpr const char* kRemoving = ".removing-";  // A checkpoint that is being removed.
constexpr const char* kLatest = "latest";
constexpr int64_t kMaxLatestBytes = 4096;

// If `name` is that of a checkpoint, sets `step` and returns true.
bool ParseName(const std::string& name, int64_t& step) {
  absl::string_view digits = name;
  return absl::ConsumePrefix(&digits, kPrefix) && absl::SimpleAtoi(digits, &step) &&
         CheckpointName(step) == name;
}

// Renames a folder. If the target exists, exchanges the two.
absl::Status MoveOrExchange(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  if (errno != ENOTEMPTY && errno != EEXIST) return ErrnoStatus(errno, "write", to);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "replace", to);
}

}  // namespace

bool IsCheckpointName(const std::string& name) {
  int64_t step = 0;
  return ParseName(name, step);
}

absl::Status CheckIsNoCheckpoint(const std::string& folder) {
  if (!Exists(InFolder(folder, kManifestName))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", folder, "' is a checkpoint, which other weights would damage: name another folder"));
}

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%08d", kPrefix, step); }

absl::StatusOr<std::shared_ptr<CheckpointFolder>> CheckpointFolder::Claim(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<OutputFolder> claim, OutputFolder::Claim(path));
  std::shared_ptr<CheckpointFolder> folder(new CheckpointFolder(std::move(claim)));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder->path()));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kStaging) && !absl::StartsWith(name, kRemoving)) continue;
    folder->removed_.push_back(InFolder(folder->path(), name));
    RemoveTree(folder->removed_.back());
  }
  return folder;
}

absl::Status CheckpointFolder::CheckSpace(int64_t bytes, int64_t largest_file) const {
  return claim_->CheckSpace("a checkpoint", {bytes - largest_file, largest_file});
}

absl::StatusOr<std::string> CheckpointFolder::Stage(int64_t step) {
  std::string staged = InFolder(path(), absl::StrCat(kStaging, CheckpointName(step), "-", UniqueSuffix()));
  if (mkdir(staged.c_str(), 0777) != 0) return ErrnoStatus(errno, "create the folder", staged);
  return staged;
}

void CheckpointFolder::Discard(const std::string& staged) { RemoveTree(staged); }

absl::Status CheckpointFolder::Commit(const std::string& staged, int64_t step, int64_t keep) const {
  const std::string name = CheckpointName(step);
  absl::Status status = SyncFolder(staged);
  if (status.ok()) status = MoveOrExchange(staged, InFolder(path(), name));
  if (status.ok()) status = SyncFolder(path());
  RemoveTree(staged);  // After an exchange this is the replaced checkpoint.
  WEFT_RETURN_IF_ERROR(status);
  WEFT_RETURN_IF_ERROR(WriteWholeFile(InFolder(path(), kLatest), name + "\n"));
  WEFT_RETURN_IF_ERROR(SyncFolder(path()));
  return RemoveOld(keep);
}

absl::Status CheckpointFolder::RemoveOld(int64_t keep) const {
  if (keep == 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListCheckpoints(path()));
  for (size_t i = static_cast<size_t>(keep); i < names.size(); ++i) WEFT_RETURN_IF_ERROR(Remove(names[i]));
  return absl::OkStatus();
}

absl::Status CheckpointFolder::Remove(const std::string& name) const {
  // Renames the folder first, so that a killed removal leaves no incomplete checkpoint.
  const std::string removed = InFolder(path(), absl::StrCat(kRemoving, name, "-", UniqueSuffix()));
  if (std::rename(InFolder(path(), name).c_str(), removed.c_str()) != 0)
    return ErrnoStatus(errno, "remove", name);
  RemoveTree(removed);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = NamesIn(folder);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  WEFT_RETURN_IF_ERROR(names.status());
  std::string latest;
  if (const auto text = ReadWholeFile(InFolder(folder, kLatest), kMaxLatestBytes); text.ok()) {
    latest = text->substr(0, text->find('\n'));
  }
  std::vector<std::pair<int64_t, std::string>> found;  // Sort key and name.
  for (const std::string& name : *names) {
    int64_t step = 0;
    if (ParseName(name, step)) found.emplace_back(name == latest ? INT64_MAX : step, name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> sorted;
  sorted.reserve(found.size());
  for (auto& [key, name] : found) sorted.push_back(std::move(name));
  return sorted;
}

}  // namespace weft
