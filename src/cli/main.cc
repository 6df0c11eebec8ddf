// The program `weft`. Under mpirun every rank runs it. Rank 0 prints an error that all ranks have agreed on;
// each rank prints an error of its own, such as a missed deadline.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include "src/cli/command_line.h"
#include "src/cli/commands/launch_command.h"
#include "src/cli/idle_threads.h"
#include "src/cli/launcher.h"
#include "src/cli/process_setup.h"
#include "src/cli/stop_signals.h"
#include "weft/core/control_characters.h"
#include "weft/core/exit_codes.h"
#include "weft/core/status.h"
#include "weft/launch/host_daemon.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/launch_environment.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/train/diagnose.h"
#include "weft/train/generate.h"
#include "weft/train/planner.h"
#include "weft/train/train.h"

namespace {

using Arguments = std::vector<std::string>;

// After the loss of a link, ranks end within about a minute.
constexpr absl::Duration kLockWaitOfRestart = absl::Minutes(2);

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return weft::kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return weft::kExitBadUsage;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return weft::kExitBadFile;
    case absl::StatusCode::kOutOfRange:
      return weft::kExitNotFinite;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return weft::kExitRankMissing;
    case absl::StatusCode::kCancelled:
      return weft::kExitInterrupted;
    default:
      return weft::kExitFailed;
  }
}

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "weft: %s\n", weft::EscapeForTerminal(weft::ToStd(status.message())).c_str());
}

// Rank 0 prints the errors that all ranks have. Every rank prints its own.
void PrintFailure(const absl::Status& status, int rank) {
  if (status.ok() || (weft::IsAgreedError(status) && rank != 0)) return;
  PrintError(weft::IsAgreedError(status) ? status : weft::Annotate(status, absl::StrCat("rank ", rank)));
}

// Prints how to resume a stopped run of `ranks` ranks. `cause`: of the stop. `arguments`: those of the
// program.
void PrintStopped(const weft::TrainReport& report, int ranks, const char* cause, const Arguments& arguments) {
  std::fprintf(stderr, "weft: stopped %s after step %lld\n", cause, static_cast<long long>(report.steps));
  if (report.checkpoint.empty()) return;
  const char* launch = std::getenv(weft::kLaunchCommandVariable);
  const std::string on_ranks = launch != nullptr || ranks == 1 ? "" : absl::StrCat(" on ", ranks, " ranks");
  std::fprintf(stderr, "weft: saved %s; to go on, run the same command with --resume auto%s:\n  %s %s\n",
               report.checkpoint.c_str(), on_ranks.c_str(), launch != nullptr ? launch : "weft",
               weft::ResumeArguments(arguments).c_str());
}

// Commands whose ranks work together. Each returns the exit code for the user. Collective: all ranks.
absl::StatusOr<int> RunCommand(weft::Bootstrap& bootstrap, const weft::TrainConfig& config,
                               weft::StopSignals& signals, const Arguments& arguments) {
  weft::TrainEnvironment environment;
  environment.watchdog = true;
  environment.stop = &signals.EnableGracefulStop();
  environment.save = &signals.save_requested();
  environment.output = stdout;
  environment.terminal = weft::IsOutputTerminal();
  if (std::getenv(weft::kLaunchRestartVariable) != nullptr) environment.lock_wait = kLockWaitOfRestart;
  std::signal(SIGPIPE,
              SIG_IGN);  // A lost reader of the output is an error of the write, which stops the run.
  WEFT_ASSIGN_OR_RETURN(const weft::TrainReport report, weft::Train(bootstrap, config, environment));
  if (!report.stopped) return weft::kExitDone;
  const bool lost_output = std::ferror(stdout) != 0 && !environment.stop->load();
  if (bootstrap.rank() == 0) {
    PrintStopped(report, bootstrap.size(),
                 lost_output ? "because standard output cannot be written," : "by a signal", arguments);
  }
  return lost_output ? weft::kExitFailed : weft::kExitInterrupted;
}

absl::StatusOr<int> RunCommand(weft::Bootstrap& bootstrap, const weft::GenerateConfig& config,
                               weft::StopSignals& /*signals*/, const Arguments& /*arguments*/) {
  weft::GenerateEnvironment environment;
  environment.output = stdout;
  environment.messages = stderr;
  environment.engine.watchdog = true;
  WEFT_RETURN_IF_ERROR(weft::Generate(bootstrap, config, environment).status());
  return weft::kExitDone;
}

const char* NameOf(const weft::TrainConfig& /*config*/) { return "train"; }
const char* NameOf(const weft::GenerateConfig& /*config*/) { return "generate"; }

// All ranks must have these alike before they work together. They compare their flags later.
template <typename Config>
absl::StatusOr<std::vector<weft::OptionValue>> OptionsOf(const absl::StatusOr<Config>& command) {
  if (!command.ok()) return command.status();
  return std::vector<weft::OptionValue>{{"the command", NameOf(*command), "give it"}};
}

// `command` may be an error on one rank alone: each rank has its own command line.
template <typename Config>
int RunOnAllRanks(const absl::StatusOr<Config>& command, const Arguments& arguments) {
  weft::StopSignals signals;  // Before MPI and OpenMP start threads.
  const weft::MpiBootstrapOptions options = weft::MpiBootstrapOptions::FromEnvironment();
  const auto bootstrap = weft::MakeMpiBootstrap(options);
  if (!bootstrap.ok()) {
    if (!absl::IsInvalidArgument(bootstrap.status()) || !weft::IsNonzeroRank())
      PrintError(bootstrap.status());
    return ExitCodeOf(bootstrap.status());
  }
  const absl::Status agreed =
      weft::AgreeOnOptions(**bootstrap, "command line", OptionsOf(command), options.timeout);
  const absl::StatusOr<int> code =
      agreed.ok() ? RunCommand(**bootstrap, *command, signals, arguments) : agreed;
  PrintFailure(code.status(), (*bootstrap)->rank());
  if (absl::IsDeadlineExceeded(code.status())) {
    std::_Exit(weft::kExitRankMissing);  // MPI_Finalize would wait for the missing rank.
  }
  return code.ok() ? *code : ExitCodeOf(code.status());
}

// Prints the error of a command, if it has one. Returns the exit code.
int PrintAnyError(const absl::Status& status) {
  if (!status.ok()) PrintError(status);
  return ExitCodeOf(status);
}

// The same for a command that starts other processes and takes over their exit code.
int PrintAnyError(const absl::StatusOr<int>& code) {
  return code.ok() ? *code : PrintAnyError(code.status());
}

// Prints the text that a command has made from files, or its error. Returns the exit code.
int PrintResult(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return PrintAnyError(text.status());
  std::fputs(weft::EscapeForTerminal(*text).c_str(), stdout);
  return weft::kExitDone;
}

// Like a run that does not fit, a plan without a mesh that fits fails.
int PrintPlan(const absl::StatusOr<weft::TrainingPlan>& plan) {
  if (!plan.ok()) return PrintAnyError(plan.status());
  PrintResult(plan->report);
  return plan->fits ? weft::kExitDone : weft::kExitFailed;
}

absl::StatusOr<std::string> Diagnose(const std::vector<std::string>& paths) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<weft::FlightRecord> records, weft::ReadFlightRecords(paths));
  WEFT_ASSIGN_OR_RETURN(const std::string diagnosis, weft::Diagnose(records));
  return diagnosis + "\n";
}

absl::StatusOr<std::string> Report(const weft::ReportOptions& options) {
  WEFT_RETURN_IF_ERROR(weft::WriteReport(options));
  return "report in " + options.output + "\n";
}

int Print(const weft::PrintText& text) {
  if (!weft::IsNonzeroRank()) std::fputs(text.text.c_str(), stdout);
  return weft::kExitDone;
}

// Runs a command of this process alone, which a signal ends. Returns its exit code.
int RunUntilSignal(absl::FunctionRef<int()> run) {
  const weft::StopSignals signals;
  return run();
}

// Runs a command and returns its exit code.
struct RunAny {
  int operator()(const weft::PrintText& text) const { return Print(text); }
  int operator()(const weft::DiagnosePaths& diagnose) const {
    return RunUntilSignal([&] { return PrintResult(Diagnose(diagnose.paths)); });
  }
  int operator()(const weft::ReportOptions& options) const {
    return RunUntilSignal([&] { return PrintResult(Report(options)); });
  }
  int operator()(const weft::TraceCommand& trace) const {
    return RunUntilSignal([&] { return PrintResult(weft::SummarizeTrace(trace.path)); });
  }
  int operator()(const weft::CheckpointCommand& command) const {
    return RunUntilSignal([&] { return PrintAnyError(weft::RunCheckpointCommand(command, stdout)); });
  }
  int operator()(const weft::PlanCommand& plan) const {
    return RunUntilSignal([&] { return PrintPlan(weft::PlanTraining(plan.config, plan.options)); });
  }
  int operator()(const weft::LaunchCommand& launch) const {
    return PrintAnyError(weft::RunLaunchCommand(launch));
  }
  int operator()(const weft::HostDaemonOptions& daemon) const {
    return PrintAnyError(weft::RunHostDaemon(daemon));
  }
  template <typename Config>
  int operator()(const Config& config) const {
    return RunOnAllRanks<Config>(config, arguments);
  }

  const Arguments& arguments;
};

}  // namespace

int main(int argc, char** argv) {
  weft::OpenStandardStreams();  // Before anything opens a file.
  weft::ReportUncaughtExceptions();
  weft::StopSignals::Block();     // A signal waits until StopSignals takes it.
  std::signal(SIGXFSZ, SIG_IGN);  // A file that exceeds `ulimit -f` is an error of the write.
  weft::LetIdleThreadsSleep(argv);
  const Arguments arguments(argv + 1, argv + argc);
  const absl::StatusOr<weft::Command> command = weft::ParseCommandLine(arguments);
  if (!command.ok() && !arguments.empty() && weft::IsCommandOfOneProcess(arguments.front())) {
    return PrintAnyError(command.status());
  }
  if (!command.ok()) return RunOnAllRanks<weft::TrainConfig>(command.status(), arguments);
  return weft::EndOutput(std::visit(RunAny{arguments}, *command));
}
