// End of a save of a checkpoint: rank 0 merges the parts of all ranks into the manifest, and commits the
// folder.
#pragma once

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
struct SaveCommit {
  std::shared_ptr<CheckpointFolder> folder;
  std::string staged;  // Path of the folder of the save.
  CheckpointLayout layout;
  CheckpointState state;  // Without arrays.
  int64_t keep;           // See CheckpointOptions.

  // `parts`: the messages of EncodePart of all ranks.
  // Errors: kInvalidArgument (the parts do not make up the files, or differ in a count of a parameter; two
  //   files have one name), kInternal (a message of another exchange), and those of the system.
  absl::Status Run(const std::vector<std::string>& parts) const;
};

}  // namespace weft
