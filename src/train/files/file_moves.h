// Moves of folders as a whole, and of the files of an export one by one, with a backup of the old files. See
// Note [Output folders].
#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// Prefixes of the names of temporary folders.
inline constexpr const char* kStagingPrefix = ".weft-new-";
inline constexpr const char* kBackupPrefix = ".weft-old-";

// Renames the folder `from` to `to`. If `to` is a folder with entries, exchanges the two. Either is one
// system call. Errors: kUnimplemented (the file system cannot exchange folders, as NFS; nothing has changed),
// and those of the system.
absl::Status MoveOrExchange(const std::string& from, const std::string& to);

// The names in a folder, without temporary folders. Errors: those of the system.
absl::StatusOr<std::vector<std::string>> LastingNamesIn(const std::string& folder);

// The moves of an export: first the old files into a backup, then the new files into the folder, in the order
// of the lists.
struct MoveList {
  std::string staging;  // Folder of the new files.
  std::vector<std::string> old;
  std::vector<std::string> fresh;
};

// Makes the moves, with a backup folder in `folder` meanwhile. After an error the files are where they were.
// Files that cannot be moved back stay in the backup. Errors: those of the system.
absl::Status MoveWithBackup(const std::string& folder, const MoveList& moves);

// Undoes the moves of a killed run, unless all new files had arrived; then removes the backup. Returns true
// if it has moved files back. Errors: those of the system, or kDataLoss (there is no list of moves).
absl::StatusOr<bool> RestoreBackup(const std::string& folder, const std::string& backup);

}  // namespace weft
