#include "src/cli/commands/checkpoint_command.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/cli/nearest.h"
#include "weft/core/size_text.h"
#include "weft/core/status.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using Strings = std::vector<std::string>;

// OK, or the error of damaged checkpoints, each of which `output` names.
absl::Status DamageStatus(size_t damaged, size_t checkpoints, std::FILE* output) {
  std::fflush(output);  // Before the error.
  if (damaged == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(damaged, " of ", checkpoints, " checkpoints cannot be used"));
}

// True if a checkpoint that was listed is gone. A live run removes its oldest ones.
bool IsRemoved(const std::string& path) {
  std::error_code error;
  return std::filesystem::symlink_status(path, error).type() == std::filesystem::file_type::not_found;
}

constexpr const char* kRemoved = "removed meanwhile";

absl::Status List(const ListCheckpointsCommand& command, std::FILE* output) {
  WEFT_ASSIGN_OR_RETURN(const Strings names, ListCheckpoints(command.folder));
  if (names.empty()) {
    std::error_code error;
    const bool exists = std::filesystem::exists(command.folder, error);
    return absl::NotFoundError(
        absl::StrCat("'", command.folder, exists ? "' has no checkpoints" : "': No such file or directory"));
  }
  std::fprintf(output, "%-20s %10s  %s\n", "checkpoint", "size", "state");
  size_t damaged = 0;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(command.folder, "/", name);
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
    std::string state = "complete";
    if (!checkpoint.ok()) {
      const bool is_removed = IsRemoved(path);
      damaged += is_removed ? 0 : 1;
      state = is_removed ? kRemoved : std::string(checkpoint.status().message());
    }
    std::fprintf(output, "%-20s %10s  %s\n", name.c_str(),
                 checkpoint.ok() ? SizeText(checkpoint->bytes()).c_str() : "", state.c_str());
  }
  return DamageStatus(damaged, names.size(), output);
}

absl::Status VerifyOne(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return checkpoint.Verify();
}

absl::Status Verify(const VerifyCheckpointsCommand& command, std::FILE* output) {
  struct Found {
    std::string path;
    bool is_listed;  // False: the user has named it, so it must exist.
  };
  std::vector<Found> checkpoints;
  for (const std::string& path : command.paths) {
    WEFT_ASSIGN_OR_RETURN(const Strings names, ListCheckpoints(path));
    for (const std::string& name : names) checkpoints.push_back({absl::StrCat(path, "/", name), true});
    if (names.empty()) checkpoints.push_back({path, false});
  }
  size_t damaged = 0;
  for (const auto& [path, is_listed] : checkpoints) {
    const absl::Status status = VerifyOne(path);
    std::string text = "ok";
    if (!status.ok()) {
      const bool is_removed = is_listed && IsRemoved(path);
      damaged += is_removed ? 0 : 1;
      text = is_removed ? kRemoved : std::string(status.message());
    }
    std::fprintf(output, "%s: %s\n", path.c_str(), text.c_str());
    std::fflush(output);
  }
  return DamageStatus(damaged, checkpoints.size(), output);
}

absl::Status Export(const ExportCheckpointCommand& command, std::FILE* output) {
  WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(command.checkpoint));
  WEFT_RETURN_IF_ERROR(checkpoint.ExportHf(command.folder));
  std::fprintf(output, "exported to %s\n", command.folder.c_str());
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointHelp() {
  return "Usage: weft checkpoint ls DIR\n"
         "       weft checkpoint verify PATH...\n"
         "       weft checkpoint export-hf CHECKPOINT DIR\n\n"
         "  ls          List the checkpoints in DIR, newest first; checks sizes and\n"
         "              headers\n"
         "  verify      Check every byte of checkpoints, or of all checkpoints in folders\n"
         "  export-hf   Write the weights of a checkpoint, with config.json and tokenizer,\n"
         "              to a Hugging Face folder\n\n"
         "Exit code 3: a checkpoint is damaged or missing.\n";
}

absl::StatusOr<CheckpointCommand> ParseCheckpointCommand(const Strings& arguments) {
  static const Strings kWords = {"ls", "verify", "export-hf"};
  const std::string word = arguments.empty() ? "" : arguments.front();
  for (const std::string& argument : arguments) {
    if (LooksLikeFlag(argument)) return UnknownFlag(argument, "checkpoint");
  }
  const Strings rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (word == "ls") {
    if (rest.size() == 1) return ListCheckpointsCommand{rest[0]};
    return absl::InvalidArgumentError("weft checkpoint ls needs one folder of checkpoints");
  }
  if (word == "verify") {
    if (!rest.empty()) return VerifyCheckpointsCommand{rest};
    return absl::InvalidArgumentError(
        "weft checkpoint verify needs a checkpoint, or a folder of checkpoints");
  }
  if (word == "export-hf") {
    if (rest.size() == 2) return ExportCheckpointCommand{rest[0], rest[1]};
    return absl::InvalidArgumentError("weft checkpoint export-hf needs a checkpoint and a folder to write");
  }
  if (word.empty()) {
    return absl::InvalidArgumentError("weft checkpoint needs one of ls, verify and export-hf: see --help");
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown word '", word, "' after weft checkpoint",
                                                 Suggestion(word, kWords, ": see --help")));
}

absl::Status RunCheckpointCommand(const CheckpointCommand& command, std::FILE* output) {
  if (const auto* list = std::get_if<ListCheckpointsCommand>(&command)) return List(*list, output);
  if (const auto* verify = std::get_if<VerifyCheckpointsCommand>(&command)) return Verify(*verify, output);
  return Export(std::get<ExportCheckpointCommand>(command), output);
}

}  // namespace weft
