// Output folder of a run: locked while the run lasts, and filled as a whole at its end.
//
// Note [Output folders]
// Problem: a reader that finds new weights beside an old configuration, or beside old shards, loads a wrong
//   model.
// Rule: new files are written to a staging folder, which then takes the place of the output folder by one
//   system call. Files of the output folder that the run does not replace are linked into the staging folder
//   first. If the system cannot do so (the output folder is a mount point, the working directory, or has
//   folders in it), files are moved one by one: the old weights leave first, and the new weights come last.
//   A run that is killed between two moves leaves the old files in a backup folder (.weft-old-*), with a list
//   of the moves. The next run that claims the folder moves them back, unless all new files had arrived.
// Why it suffices: weights are never seen beside files of another export. An error leaves the old files as
//   they were.
// Without it: a run that is killed during its export leaves a mixture.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// Sizes of the files that a run will write.
struct FileSizes {
  int64_t total = 0;  // In bytes, as `largest`.
  int64_t largest = 0;

  void Add(int64_t bytes) {
    total += bytes;
    largest = std::max(largest, bytes);
  }
};

// Thread safety: none.
class OutputFolder {
 public:
  // Creates the folder if it does not exist, locks it against other runs, and checks that files can be made
  // there. Restores the files that killed runs have moved away, and removes their staging folders. A file
  // system without locks (some network file systems) is used without one, and nothing is restored or removed
  // there.
  // Errors: kInvalidArgument (another run has the folder), kNotFound, kPermissionDenied, kResourceExhausted,
  //   kUnavailable, kDataLoss (names the path).
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Claim(const std::string& path);
  // Removes the staging folder. Without a commit, also the folders that Claim created.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& path() const { return path_; }
  // False if the file system has no locks: another run may use the folder.
  bool is_locked() const { return fd_ >= 0; }
  // Messages about exports that were killed while they moved files: the files that Claim has restored, and
  // the backups that it could not restore.
  const std::vector<std::string>& messages() const { return messages_; }

  // Checks that files of these sizes can be written. `what`: their name in messages, as in "the export".
  // Errors: kResourceExhausted (gives needed and free bytes, or the largest file and the limit of its size).
  absl::Status CheckSpace(const char* what, const FileSizes& sizes) const;
  // Makes an empty staging folder, and returns its path. If somebody has removed the folder since Claim,
  // creates and locks it again. Errors: as Claim.
  absl::StatusOr<std::string> Stage();
  // Moves the staged files into place, `last` after all others. They replace files of the same names, and
  // files for which `is_obsolete` is true. After an error the folder is as before, unless only the final
  // flush failed. REQUIRES: Stage; all files are closed.
  absl::Status Commit(const std::string& last, absl::FunctionRef<bool(const std::string&)> is_obsolete);
  // Removes the staging folder.
  void Discard();

 private:
  using Names = std::vector<std::string>;

  explicit OutputFolder(std::string path) : path_(std::move(path)) {}
  absl::Status Create();
  absl::Status CreateAgainIfRemoved();
  absl::Status Lock();
  void RestoreBackups();
  void RemoveLeftovers() const;
  bool Replace(const Names& old, const Names& kept) const;

  std::string path_;                  // Without links.
  std::vector<std::string> created_;  // The folder and its parents, as far as Claim created them.
  int fd_ = -1;                       // The folder, if it is locked.
  std::string staging_;               // Empty if there is none.
  std::vector<std::string> messages_;
};

}  // namespace weft
