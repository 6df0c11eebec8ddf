// Parser of the command line of `weft`.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <absl/status/statusor.h>

#include "src/cli/commands/checkpoint_command.h"
#include "src/cli/commands/launch_command.h"
#include "src/cli/commands/report_command.h"
#include "weft/launch/host_daemon.h"
#include "weft/train/config.h"
#include "weft/train/generate.h"
#include "weft/train/planner.h"

namespace weft {

// Help or version, which the user asked for.
struct PrintText {
  std::string text;
};

// `weft diagnose`: the files and folders of flight recorders.
struct DiagnosePaths {
  std::vector<std::string> paths;
};

// `weft plan`: the run to forecast.
struct PlanCommand {
  TrainConfig config;
  PlanOptions options;
};

using Command = std::variant<PrintText, TrainConfig, GenerateConfig, LaunchCommand, HostDaemonOptions,
                             DiagnosePaths, CheckpointCommand, ReportOptions, TraceCommand, PlanCommand>;

// Parses `arguments`, which do not include the program's name. Reads the file of --config; flags on the
// command line override its keys. The returned configuration has passed Validate.
// Errors: kInvalidArgument (names the flag, key or value, and the nearest one that exists), and those of
// Validate(LaunchOptions).
absl::StatusOr<Command> ParseCommandLine(const std::vector<std::string>& arguments);

// True for the words of commands that never run as ranks. Their errors need no agreement.
bool IsCommandOfOneProcess(std::string_view word);

// The arguments of a stopped run with `--resume auto` in place of another --resume, quoted for a shell.
std::string ResumeArguments(const std::vector<std::string>& arguments);

}  // namespace weft
