// Folder of all checkpoints of a run, on rank 0: staging, commit and removal.
//
// Thread safety: none, but commits may come from several threads. See Note [Commit of a checkpoint] in
// weft/train/checkpoint.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/files/output_folder.h"
#include "weft/core/mutex.h"

namespace weft {

// True for the names of CheckpointName.
bool IsCheckpointName(const std::string& name);

// Errors: kInvalidArgument (the folder is a checkpoint, also a damaged one, or has checkpoints).
absl::Status CheckIsNoCheckpoint(const std::string& folder);

// The path of the checkpoint that `folder` is, or in which it lies; empty without one. Also the path that a
// checkpoint of the folder around it may get: a run there would remove it with its old checkpoints.
std::string CheckpointAround(const std::string& folder);

class CheckpointFolder {
 public:
  // Creates and locks the folder, and restores or removes the remains of killed saves if the lock is held.
  // Errors: those of OutputFolder::Claim; kInvalidArgument (the folder is or lies in a checkpoint); kDataLoss
  // (without locks: a killed save has moved a checkpoint away; names its folder).
  static absl::StatusOr<std::shared_ptr<CheckpointFolder>> Claim(const std::string& path);

  const std::string& path() const { return claim_->path(); }
  // The remains that Claim removed.
  const std::vector<std::string>& removed() const { return removed_; }
  // Warnings since the last call about folders that could not be removed. Each folder has one warning.
  // Another thread may commit meanwhile.
  std::vector<std::string> TakeWarnings();
  // Errors: those of OutputFolder::CheckSpace.
  absl::Status CheckSpace(const FileSizes& sizes) const;
  // Makes an empty folder for the files of a checkpoint, and returns its path.
  absl::StatusOr<std::string> Stage(int64_t step);
  struct Place {
    int64_t step;
    std::optional<int64_t> parent;  // See CheckpointState.
    int64_t keep;                   // Newest checkpoints to keep, this one among them; 0: all.
  };
  // Makes the staged checkpoint visible, lists it first in `latest`, and removes old ones as far as the
  // system allows it: see TakeWarnings. After an error the staged folder is gone, and the first one of
  // `latest` is complete: this one or the one before. Errors: kCancelled (`abandoned` is true: see Note [Late
  // commits]), and those of the system. REQUIRES: all files are flushed and closed.
  absl::Status Commit(const std::string& staged, const Place& place, const std::atomic<bool>& abandoned);
  // Removes a staged folder.
  static void Discard(const std::string& staged);

 private:
  explicit CheckpointFolder(std::unique_ptr<OutputFolder> claim) : claim_(std::move(claim)) {}
  void RemoveCheckpoint(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_);
  bool RemoveHidden(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_);
  void WarnAbout(const std::string& path, int error);

  Mutex commit_;                                            // Held by the commit that changes the folder.
  std::set<std::string> remains_ ABSL_GUARDED_BY(commit_);  // Hidden folders that could not be removed.
  std::unique_ptr<OutputFolder> claim_;
  std::vector<std::string> removed_;
  Mutex warnings_mutex_;  // Never held in a call of the file system.
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(warnings_mutex_);  // Not taken yet.
  std::set<std::string> warned_ ABSL_GUARDED_BY(warnings_mutex_);       // Paths of all warnings.
};

}  // namespace weft
