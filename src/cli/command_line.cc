#include "src/cli/command_line.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include "src/cli/flag_group.h"
#include "src/cli/flag_parser.h"
#include "src/cli/generate_flags.h"
#include "src/cli/launch_flags.h"
#include "src/cli/nearest.h"
#include "src/cli/train_flags.h"
#include "weft/core/status.h"
#include "weft/mesh/share_domain.h"

namespace weft {
namespace {

using Strings = std::vector<std::string>;

constexpr const char* kTrainUsage =
    "Usage: [mpirun -n RANKS] weft train [FLAGS]\n"
    "If a flag is given more than once, its last value counts. --data and --eval-data use the paths "
    "of all their values.\n";
constexpr const char* kGenerateUsage =
    "Usage: [mpirun -n RANKS] weft generate --hf-model DIR --prompt TEXT [FLAGS]\n"
    "Prints the new text alone on standard output, and messages on standard error.\n";
constexpr const char* kPlanUsage =
    "Usage: weft plan --ranks N [--hosts H] [FLAGS] [FLAGS OF weft train]\n"
    "Without --dp-replicate and --dp-shard, all meshes of the ranks are compared.\n";
constexpr const char* kLaunchUsage =
    "Usage: weft launch [FLAGS] -- train [FLAGS OF weft train]\n"
    "Ctrl-C, SIGTERM and SIGUSR1 reach the ranks. docs/launching.md lists the failures that lead to a "
    "restart.\n";

std::string QuotedForShell(const Strings& arguments) {
  Strings quoted;
  for (const std::string& argument : arguments) {
    const bool plain = argument.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789-_=./:,+@%") == std::string::npos;
    quoted.push_back(plain && !argument.empty()
                         ? argument
                         : absl::StrCat("'", absl::StrReplaceAll(argument, {{"'", "'\\''"}}), "'"));
  }
  return absl::StrJoin(quoted, " ");
}

// Without --share-domain, WEFT_SHARE_DOMAIN chooses. A run that has the flag does not read the variable.
absl::Status ReadShareDomain(const CLI::App& app, ShareDomain& domain) {
  if (app.count("--share-domain") > 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(domain, DefaultShareDomain());
  return absl::OkStatus();
}

// Parses the flags of a run, and of its file. `app` may have others. Returns the help text if it is asked
// for.
absl::StatusOr<std::optional<PrintText>> ParseRun(CLI::App& app, TrainConfig& config, const char* usage,
                                                  const Strings& arguments) {
  AddTrainFlags(app, config);
  FlagGroup other(app, "Other");
  other.Text("--config", config.config_file, "File with flags as keys, such as: steps = 100", "FILE.toml");
  WEFT_RETURN_IF_ERROR(CheckBrackets(arguments));
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help, ParseFlags(app, usage, arguments));
  if (help) return help;
  if (const std::string& path = config.config_file; !path.empty()) {
    WEFT_RETURN_IF_ERROR(Annotate(ApplyConfigFile(app, path), absl::StrCat("--config ", path)));
  }
  WEFT_RETURN_IF_ERROR(ReadShareDomain(app, config.parallel.share_domain));
  WEFT_RETURN_IF_ERROR(Validate(config));
  config.given_flags = GivenFlags(app);
  return std::nullopt;
}

absl::StatusOr<Command> ParseTrain(const Strings& arguments) {
  TrainConfig config;
  CLI::App app("Trains a Llama model on the ranks of mpirun, or on one rank without it.", "train");
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help, ParseRun(app, config, kTrainUsage, arguments));
  if (help) return *help;
  return config;
}

absl::StatusOr<Command> ParseGenerate(const Strings& arguments) {
  GenerateConfig config;
  CLI::App app("Generates text with a Llama model that is sharded over the ranks of mpirun.", "generate");
  AddGenerateFlags(app, config);
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help, ParseFlags(app, kGenerateUsage, arguments));
  if (help) return *help;
  WEFT_RETURN_IF_ERROR(ReadShareDomain(app, config.parallel.share_domain));
  WEFT_RETURN_IF_ERROR(Validate(config));
  return config;
}

// The arguments without the flags of the forecast and of the mesh.
Strings WithoutPlanFlags(const CLI::App& plan_flags, const Strings& arguments) {
  Strings kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    const CLI::Option* option = plan_flags.get_option_no_throw(name);
    const bool of_mesh = name == "--dp-replicate" || name == "--dp-shard" || name == "--cp";
    if (option == nullptr && !of_mesh) {
      kept.push_back(arguments[i]);
    } else if (name == arguments[i] && (of_mesh || option->get_items_expected_min() > 0)) {
      ++i;  // Its value.
    }
  }
  return kept;
}

absl::StatusOr<Command> ParsePlan(const Strings& arguments) {
  PlanCommand plan;
  CLI::App app("Forecasts memory, traffic and time of a training step for each mesh.", "plan");
  AddPlanFlags(app, plan.options);
  // A file of --config is that of the run: weft train would refuse the flags of the forecast in it.
  for (CLI::Option* option : app.get_options()) option->configurable(false);
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help,
                        ParseRun(app, plan.config, kPlanUsage, arguments));
  if (help) return *help;
  plan.options.all_meshes =
      app.get_option("--dp-replicate")->count() == 0 && app.get_option("--dp-shard")->count() == 0;
  CLI::App plan_flags;
  PlanOptions unused;
  AddPlanFlags(plan_flags, unused);
  plan.options.train_arguments = QuotedForShell(WithoutPlanFlags(plan_flags, arguments));
  return plan;
}

// The program after `--`. Its flags are checked here, before mpirun starts.
absl::StatusOr<Command> ParseLaunchedProgram(const Strings& program, LaunchCommand launch) {
  if (program.empty() || program.front() != "train") {
    return absl::InvalidArgumentError(
        absl::StrCat("the program after -- is ", program.empty() ? "missing" : "'" + program.front() + "'",
                     ", but only train can be launched: weft launch -n 4 -- train ..."));
  }
  WEFT_ASSIGN_OR_RETURN(Command train, ParseTrain(Strings(program.begin() + 1, program.end())));
  if (std::holds_alternative<PrintText>(train)) return train;
  launch.checkpoint = std::get<TrainConfig>(train).checkpoint;
  if (launch.options.max_restarts > 0 && launch.checkpoint.folder.empty()) {
    return absl::InvalidArgumentError(
        "a restart goes on from a checkpoint: give train a --checkpoint-dir, or launch with --max-restarts "
        "0");
  }
  launch.program = program;
  return launch;
}

absl::StatusOr<Command> ParseLaunch(const Strings& arguments) {
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  const bool asks_for_help = std::any_of(
      arguments.begin(), separator, [](const std::string& word) { return word == "--help" || word == "-h"; });
  const auto missing_separator = absl::InvalidArgumentError(
      "-- is missing between the flags of launch and the program: weft launch -n 4 -- train ...");
  if (separator == arguments.end() && !asks_for_help) return missing_separator;
  LaunchCommand launch;
  CLI::App app(
      "Starts ranks by mpirun, and starts them again if a rank fails, from the last checkpoint if there is "
      "one.",
      "launch");
  AddLaunchFlags(app, launch.options);
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help,
                        ParseFlags(app, kLaunchUsage, Strings(arguments.begin(), separator)));
  if (help) return *help;
  if (separator == arguments.end()) return missing_separator;  // The value of a flag was --help or -h.
  WEFT_RETURN_IF_ERROR(Validate(launch.options));
  Strings before_program = {"weft", "launch"};
  before_program.insert(before_program.end(), arguments.begin(), separator + 1);
  launch.before_program = QuotedForShell(before_program);
  return ParseLaunchedProgram(Strings(separator + 1, arguments.end()), std::move(launch));
}

// mpirun starts this command on other hosts; users do not.
absl::StatusOr<Command> ParseHostDaemon(const Strings& arguments) {
  if (arguments.size() < 2) {
    return absl::InvalidArgumentError("weft host-daemon is started by weft launch only");
  }
  return HostDaemonOptions{arguments.front(), Strings(arguments.begin() + 1, arguments.end())};
}

absl::StatusOr<Command> ParseDiagnose(const Strings& arguments) {
  static constexpr const char* kHelp =
      "Usage: weft diagnose PATH...\n\n"
      "Tells which rank of a failed run is late or disagrees with the others, in one\n"
      "line.\n\n"
      "  PATH    A flight recorder, or a folder with those of a run, such as weft-dump\n";
  DiagnosePaths diagnose;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return PrintText{kHelp};
    if (LooksLikeFlag(argument)) return UnknownFlag(argument, "diagnose");
    diagnose.paths.push_back(argument);
  }
  if (diagnose.paths.empty()) {
    return absl::InvalidArgumentError(
        "weft diagnose needs the folder of a run's flight recorders, such as weft-dump");
  }
  return diagnose;
}

bool AsksForHelp(const Strings& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& argument) { return argument == "--help" || argument == "-h"; });
}

absl::StatusOr<Command> ParseCheckpoint(const Strings& arguments) {
  if (AsksForHelp(arguments)) return PrintText{CheckpointHelp()};
  return ParseCheckpointCommand(arguments);
}

absl::StatusOr<Command> ParseReport(const Strings& arguments) {
  if (AsksForHelp(arguments)) return PrintText{ReportHelp()};
  return ParseReportCommand(arguments);
}

absl::StatusOr<Command> ParseTrace(const Strings& arguments) {
  if (AsksForHelp(arguments)) return PrintText{TraceHelp()};
  return ParseTraceCommand(arguments);
}

// A command of the program.
struct CommandEntry {
  const char* word;
  const char* summary;  // For the program's help. Empty: users do not give the command.
  absl::StatusOr<Command> (*parse)(const Strings& arguments);
  bool runs_as_ranks;
};

constexpr CommandEntry kCommands[] = {
    {"train", "Train a Llama model", ParseTrain, true},
    {"plan", "Forecast memory and time of a run on each mesh", ParsePlan, false},
    {"generate", "Generate text with a Llama model", ParseGenerate, true},
    {"launch", "Start weft train on several ranks, and again after a failure", ParseLaunch, false},
    {"host-daemon", "", ParseHostDaemon, false},
    {"checkpoint", "List, check and convert checkpoints", ParseCheckpoint, false},
    {"report", "Write a page about one or several runs, from their metrics", ParseReport, false},
    {"trace", "Print the times of parameter groups and modules in a trace", ParseTrace, false},
    {"diagnose", "Tell which rank of a failed run is late, from its flight recorders", ParseDiagnose, false},
};

// Null if there is no such command.
const CommandEntry* FindCommand(std::string_view word) {
  const auto* found = std::find_if(std::begin(kCommands), std::end(kCommands),
                                   [&](const CommandEntry& command) { return command.word == word; });
  return found == std::end(kCommands) ? nullptr : found;
}

std::string ProgramHelp() {
  std::string text = "weft " WEFT_VERSION
                     ": hybrid-sharded training on CPUs over MPI\n\n"
                     "Usage: [mpirun -n RANKS] weft COMMAND [FLAGS]\n\n"
                     "Commands:\n";
  for (const CommandEntry& command : kCommands) {
    if (*command.summary == 0) continue;
    absl::StrAppendFormat(&text, "  %-11s %s\n", command.word, command.summary);
  }
  return text +
         "\n"
         "  --help      Print this text; weft COMMAND --help prints its flags\n"
         "  --version   Print the version\n";
}

// First arguments that a user may write.
Strings FirstWords() {
  Strings words;
  for (const CommandEntry& command : kCommands) {
    if (*command.summary != 0) words.emplace_back(command.word);
  }
  words.insert(words.end(), {"--help", "--version"});
  return words;
}

}  // namespace

bool IsCommandOfOneProcess(std::string_view word) {
  const CommandEntry* command = FindCommand(word);
  return command != nullptr && !command->runs_as_ranks;
}

absl::StatusOr<Command> ParseCommandLine(const Strings& arguments) {
  if (arguments.empty() || arguments.front().empty()) {
    return absl::InvalidArgumentError("no command was given: try weft train, or weft --help");
  }
  const std::string& first = arguments.front();
  if (const CommandEntry* command = FindCommand(first)) {
    return command->parse(Strings(arguments.begin() + 1, arguments.end()));
  }
  if (first == "--help" || first == "-h") {
    return PrintText{ProgramHelp()};
  }
  if (first == "--version") {
    return PrintText{"weft " WEFT_VERSION "\n"};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command '", first, "'", Suggestion(first, FirstWords(), ": see weft --help")));
}

std::string ResumeArguments(const std::vector<std::string>& arguments) {
  Strings kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--resume") {
      ++i;  // Its value.
    } else if (!absl::StartsWith(arguments[i], "--resume=")) {
      kept.push_back(arguments[i]);
    }
  }
  kept.insert(kept.end(), {"--resume", "auto"});
  return QuotedForShell(kept);
}

}  // namespace weft
