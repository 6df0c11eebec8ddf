#include "src/cli/command_line.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <CLI/CLI.hpp>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include "src/cli/generate_flags.h"
#include "src/cli/launch_flags.h"
#include "src/cli/nearest.h"
#include "src/cli/toml_reader.h"
#include "src/cli/train_flags.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Strings = std::vector<std::string>;

constexpr size_t kHelpColumn = 44;
constexpr uintmax_t kMaxConfigBytes = 1 << 20;

// Formats options as "--flag TYPE    description [default]".
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) { column_width(kHelpColumn); }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string& value = option->get_default_str();
    return option->get_description() + (value.empty() ? "" : " [" + value + "]");
  }
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override { return usage_; }

 private:
  const std::string usage_;
};

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

// The names of all flags, without dashes.
Strings FlagNames(const CLI::App& app) {
  Strings names;
  for (const CLI::Option* option : app.get_options()) {
    names.push_back(option->get_single_name());
  }
  return names;
}

absl::Status UnknownFlag(const CLI::App& app, const std::string& argument) {
  if (argument.rfind("--", 0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument '", argument, "': see weft ", app.get_name(), " --help"));
  }
  const std::string name = argument.substr(2, argument.find('=') - 2);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, "; did you mean --", Nearest(name, FlagNames(app)), "?"));
}

// Fails if an argument belongs to no flag; names the first such flag or argument.
absl::Status CheckExtras(const CLI::App& app) {
  const Strings extras = app.remaining();
  if (extras.empty()) {
    return absl::OkStatus();
  }
  // The value after an unknown flag is an extra too, but the error must name the flag.
  const auto flag =
      std::find_if(extras.begin(), extras.end(), [](const std::string& s) { return s.rfind('-', 0) == 0; });
  return UnknownFlag(app, flag == extras.end() ? extras.front() : *flag);
}

// CLI11 splits such a value of a flag that takes several, and would use other files than the one named.
absl::Status CheckBrackets(const Strings& values) {
  for (const std::string& value : values) {
    const absl::string_view path(value.rfind("--", 0) == 0 ? value.c_str() + value.find('=') + 1
                                                           : value.c_str());
    if (!absl::StartsWith(path, "[") || !absl::EndsWith(path, "]")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is a list, which is not allowed: write ./", path, " for a path"));
  }
  return absl::OkStatus();
}

// The error of CLI11, reworded where its message is hard to read.
absl::Status ParseError(const CLI::ParseError& error) {
  const std::string message = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string flag = message.substr(0, message.find(':'));
    return absl::InvalidArgumentError(absl::StrCat(flag, " is given without a value"));
  }
  return absl::InvalidArgumentError(message);
}

// Applies one key of the file, unless the command line sets its flag. `lines`: the line of each key so far.
absl::Status ApplyConfigItem(CLI::App& app, const TomlItem& item, std::map<std::string, int>& lines) {
  const Strings names = FlagNames(app);
  if (std::find(names.begin(), names.end(), item.key) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown key '", item.key, "'; did you mean '", Nearest(item.key, names), "'?"));
  }
  if (item.key == "config" || item.key == "help") {
    return absl::InvalidArgumentError(absl::StrCat("'", item.key, "' is allowed on the command line only"));
  }
  CLI::Option* option = app.get_option("--" + item.key);
  const bool takes_list = option->get_items_expected_max() > 1;
  const auto [first, is_new] = lines.emplace(item.key, item.line);
  if (!is_new) {
    return absl::InvalidArgumentError(
        absl::StrCat("key '", item.key, "' is given in line ", first->second, " and in line ", item.line,
                     takes_list ? ": write all its values in one list" : ": keep one of them"));
  }
  if (item.is_list && !takes_list) {
    return absl::InvalidArgumentError(absl::StrCat("key '", item.key, "' takes one value, not a list"));
  }
  if (item.values.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key '", item.key, "' has an empty list: give it a value, or remove the key"));
  }
  if (takes_list) WEFT_RETURN_IF_ERROR(CheckBrackets(item.values));
  if (option->count() == 0) {
    option->add_result(item.values);
    option->run_callback();
  }
  return absl::OkStatus();
}

// Refuses a FIFO, whose open would wait for a writer, and a file so large that it would fill the memory.
absl::Status CheckConfigFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError("this is a FIFO, a socket or a device: copy its content to a file");
  }
  if (const uintmax_t bytes = std::filesystem::file_size(path, error); bytes > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has ", bytes, " bytes, but at most ", kMaxConfigBytes, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status ApplyConfigFile(CLI::App& app, const std::string& path) {
  WEFT_RETURN_IF_ERROR(CheckConfigFile(path));
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good()) return absl::InvalidArgumentError("the file cannot be read");
  WEFT_ASSIGN_OR_RETURN(const std::vector<TomlItem> items, ReadToml(text));
  std::map<std::string, int> lines;
  try {
    for (const TomlItem& item : items) WEFT_RETURN_IF_ERROR(ApplyConfigItem(app, item, lines));
  } catch (const CLI::ParseError& error) {
    return ParseError(error);
  }
  return absl::OkStatus();
}

// Parses flags. Returns the help text if it is asked for.
absl::StatusOr<std::optional<PrintText>> ParseFlags(CLI::App& app, const char* usage,
                                                    const Strings& arguments) {
  app.formatter(std::make_shared<HelpFormatter>(usage));
  app.allow_extras();
  app.set_help_flag("--help,-h", "Print this text")->group("Other");
  try {
    app.parse(Strings(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return PrintText{absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}})};
  } catch (const CLI::ParseError& error) {
    return ParseError(error);
  }
  WEFT_RETURN_IF_ERROR(CheckExtras(app));
  return std::nullopt;
}

std::string QuotedForToml(const std::string& value) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\t", "\\t"}, {"\n", "\\n"}}), "\"");
}

// The flags that were given, on the command line or in a file, as a file of --config. Without those that
// every run needs anew.
std::string GivenFlags(const CLI::App& app) {
  std::string text = "# Flags of a run. To repeat it: weft train --config THIS_FILE --metrics NEW.jsonl\n";
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (option->count() == 0 || name == "config" || name == "metrics" || name == "resume") continue;
    const bool is_list = option->get_items_expected_max() > 1;
    Strings values = option->results();
    if (!is_list) values = {values.back()};
    for (std::string& value : values) value = QuotedForToml(value);
    const std::string joined = absl::StrJoin(values, ", ");
    absl::StrAppend(&text, name, " = ", is_list ? absl::StrCat("[", joined, "]") : joined, "\n");
  }
  return text;
}

// Parses the flags of a run, and of its file. `app` may have others. Returns the help text if it is asked for.
absl::StatusOr<std::optional<PrintText>> ParseRun(CLI::App& app, TrainConfig& config, const char* usage,
                                                  const Strings& arguments) {
  AddTrainFlags(app, config);
  app.add_option("--config", config.config_file, "File with flags as keys, such as: steps = 100")
      ->check(CLI::ExistingFile)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("FILE.toml")
      ->group("Other");
  WEFT_RETURN_IF_ERROR(CheckBrackets(arguments));
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help, ParseFlags(app, usage, arguments));
  if (help) return help;
  if (const std::string& path = config.config_file; !path.empty()) {
    WEFT_RETURN_IF_ERROR(Annotate(ApplyConfigFile(app, path), absl::StrCat("--config ", path)));
  }
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
    } else if (name == arguments[i] && (of_mesh || option->get_type_size() > 0)) {
      ++i;  // Its value.
    }
  }
  return kept;
}

absl::StatusOr<Command> ParsePlan(const Strings& arguments) {
  PlanCommand plan;
  CLI::App app("Forecasts memory, traffic and time of a training step for each mesh.", "plan");
  AddPlanFlags(app, plan.options);
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
  LaunchCommand launch;
  CLI::App app("Starts ranks by mpirun, and starts them again from the last checkpoint if a rank fails.",
               "launch");
  AddLaunchFlags(app, launch.options);
  WEFT_ASSIGN_OR_RETURN(const std::optional<PrintText> help,
                        ParseFlags(app, kLaunchUsage, Strings(arguments.begin(), separator)));
  if (help) return *help;
  if (separator == arguments.end()) {
    return absl::InvalidArgumentError("-- is missing before the program: weft launch -n 4 -- train ...");
  }
  WEFT_RETURN_IF_ERROR(Validate(launch.options));
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
      "Tells which rank of a failed run is late or disagrees with the others, in one line.\n\n"
      "  PATH    A flight recorder, or a folder with those of a run, such as weft-dump\n";
  DiagnosePaths diagnose;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return PrintText{kHelp};
    if (argument.rfind("--", 0) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", argument, ": see weft diagnose --help"));
    }
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

std::string ProgramHelp() {
  return "weft " WEFT_VERSION
         ": hybrid-sharded training on CPUs over MPI\n\n"
         "Usage: [mpirun -n RANKS] weft COMMAND [FLAGS]\n\n"
         "Commands:\n"
         "  train       Train a Llama model\n"
         "  plan        Forecast memory and time of a run on each mesh\n"
         "  generate    Generate text with a Llama model\n"
         "  launch      Start weft train on several ranks, and again after a failure\n"
         "  checkpoint  List, check and convert checkpoints\n"
         "  report      Write a page about one or several runs, from their metrics\n"
         "  trace       Print the times of each parameter group in a trace\n"
         "  diagnose    Tell which rank of a failed run is late, from its flight recorders\n\n"
         "  --help      Print this text; weft COMMAND --help prints its flags\n"
         "  --version   Print the version\n";
}

}  // namespace

absl::StatusOr<Command> ParseCommandLine(const Strings& arguments) {
  static const Strings kWords = {"train",  "plan",  "generate", "launch", "checkpoint",
                                 "report", "trace", "diagnose", "--help", "--version"};
  const std::string first = arguments.empty() ? "" : arguments.front();
  const Strings rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (first == "train") return ParseTrain(rest);
  if (first == "plan") return ParsePlan(rest);
  if (first == "generate") return ParseGenerate(rest);
  if (first == "launch") return ParseLaunch(rest);
  if (first == "host-daemon") return ParseHostDaemon(rest);
  if (first == "checkpoint") return ParseCheckpoint(rest);
  if (first == "report") return ParseReport(rest);
  if (first == "trace") return ParseTrace(rest);
  if (first == "diagnose") return ParseDiagnose(rest);
  if (first == "--help" || first == "-h") {
    return PrintText{ProgramHelp()};
  }
  if (first == "--version") {
    return PrintText{"weft " WEFT_VERSION "\n"};
  }
  if (first.empty()) {
    return absl::InvalidArgumentError("no command was given: try weft train, or weft --help");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command '", first, "'; did you mean ", Nearest(first, kWords), "?"));
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
