#include "src/cli/commands/launch_command.h"

#include <cstdlib>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"
#include "weft/mesh/launch_environment.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/train/checkpoint.h"

namespace weft {

RestartArguments::RestartArguments(CheckpointConfig checkpoint, bool ranks_are_local)
    : checkpoint_(std::move(checkpoint)), ranks_are_local_(ranks_are_local), newest_before_(Newest()) {}

absl::StatusOr<std::vector<std::string>> RestartArguments::operator()() const {
  const bool names_checkpoint = !checkpoint_.resume.empty() && checkpoint_.resume != "auto";
  std::error_code ignored;
  if (names_checkpoint && !ranks_are_local_ && !std::filesystem::exists(checkpoint_.folder, ignored)) {
    return absl::NotFoundError(absl::StrCat(
        "the folder --checkpoint-dir ", checkpoint_.folder,
        " does not exist on this host, so it is not known whether the run has saved a checkpoint later than "
        "--resume ",
        checkpoint_.resume, ": launch with --resume auto if it has, otherwise with the same command"));
  }
  const bool user_decides = !newest_before_.empty() || !checkpoint_.resume.empty();
  if (user_decides && Newest() == newest_before_) return std::vector<std::string>();
  return std::vector<std::string>{"--resume", "auto"};
}

std::string RestartArguments::Newest() const {
  const absl::StatusOr<std::vector<std::string>> names = ListCheckpoints(checkpoint_.folder);
  if (!names.ok() || names->empty()) return "";
  struct stat info {};
  if (stat(absl::StrCat(checkpoint_.folder, "/", names->front()).c_str(), &info) != 0) return names->front();
  return absl::StrCat(names->front(), " ", info.st_ino, " ", info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec);
}

absl::StatusOr<int> RunLaunchCommand(const LaunchCommand& command) {
  std::error_code error;
  RankProgram program;
  program.command.push_back(std::filesystem::read_symlink("/proc/self/exe", error));
  program.command.insert(program.command.end(), command.program.begin(), command.program.end());
  unsetenv(kLaunchRestartVariable);  // The process has one thread.
  program.restart_arguments = [arguments =
                                   RestartArguments(command.checkpoint, RanksAreLocal(command.options))] {
    setenv(kLaunchRestartVariable, "1", /*overwrite=*/1);
    return arguments();
  };
  LaunchOptions options = command.options;
  const MpiBootstrapOptions of_ranks = MpiBootstrapOptions::FromEnvironment();
  WEFT_RETURN_IF_ERROR(of_ranks.error);
  options.startup_timeout = of_ranks.startup_timeout;
  setenv(kLaunchCommandVariable, command.before_program.c_str(), /*overwrite=*/1);
  return Launch(options, program);
}

}  // namespace weft
