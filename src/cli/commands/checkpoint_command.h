// `weft checkpoint`: lists, checks and converts checkpoints, without MPI.
#pragma once

#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft {

// `weft checkpoint ls DIR`.
struct ListCheckpointsCommand {
  std::string folder;
};
// `weft checkpoint verify PATH...`: checkpoints, or folders of checkpoints.
struct VerifyCheckpointsCommand {
  std::vector<std::string> paths;
};
// `weft checkpoint export-hf CHECKPOINT DIR`.
struct ExportCheckpointCommand {
  std::string checkpoint;
  std::string folder;
};
using CheckpointCommand =
    std::variant<ListCheckpointsCommand, VerifyCheckpointsCommand, ExportCheckpointCommand>;

std::string CheckpointHelp();

// Errors: kInvalidArgument (names the argument).
absl::StatusOr<CheckpointCommand> ParseCheckpointCommand(const std::vector<std::string>& arguments);

// Prints to `output`. Errors: those of Checkpoint; kDataLoss if ls or verify found a damaged checkpoint,
// which the output then names.
absl::Status RunCheckpointCommand(const CheckpointCommand& command, std::FILE* output);

}  // namespace weft
