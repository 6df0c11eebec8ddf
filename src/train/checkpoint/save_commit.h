// End of a save of a checkpoint: rank 0 merges the parts of all ranks into the manifest, and commits the
// folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/checkpoint/checkpoint_layout.h"
#include "weft/train/checkpoint.h"

namespace weft {

// Rank 0's part of a save after all ranks have written.
//
// Note [Late commits]
// Problem: the device may delay a commit beyond all waits for it. The save is then abandoned, and other saves
//   or runs may follow, while the thread of the commit still uses the folder of the save.
// Rule: that folder belongs to the commit alone, which renames or removes it. A commit whose save has been
//   abandoned stops before it renames. Commits of one folder follow one another.
// Why it suffices: nobody removes files of a folder that is being renamed. A rename that has begun before the
//   save was abandoned shows a complete checkpoint, and later commits come after it.
// Without it: a folder step-… may lack files, and whole checkpoints are removed in its favor.
struct SaveCommit {
  std::shared_ptr<CheckpointFolder> folder;
  std::string staged;  // Path of the folder of the save. After Run it is gone.
  CheckpointLayout layout;
  CheckpointState state;                               // Without arrays.
  int64_t keep;                                        // See CheckpointOptions.
  std::shared_ptr<const std::atomic<bool>> abandoned;  // The save no longer waits for the commit.

  // `parts`: the messages of EncodePart of all ranks.
  // Errors: kInvalidArgument (the parts do not make up the files, or differ in a count of a parameter; two
  //   files have one name; a reader would refuse the checkpoint), kInternal (a message of another exchange),
  //   those of CheckpointFolder::Commit.
  absl::Status Run(const std::vector<std::string>& parts) const;

 private:
  absl::Status FinishDataFiles() const;
  absl::Status WriteDescription(const std::vector<std::string>& parts) const;
};

}  // namespace weft
