// The program `weft`. Under mpirun every rank runs it. Rank 0 prints messages, but each rank prints its own
// timeout.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "src/cli/command_line.h"
#include "src/cli/idle_threads.h"
#include "src/cli/launcher.h"
#include "src/cli/stop_signals.h"
#include "weft/core/status.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/train/train.h"

namespace {

// Exit codes of the program; docs/training.md lists them.
constexpr int kExitDone = 0;
constexpr int kExitFailed = 1;         // Out of memory, a full disk, or a defect.
constexpr int kExitBadUsage = 2;       // The command line or the configuration.
constexpr int kExitBadFile = 3;        // An input or output file.
constexpr int kExitNotFinite = 4;      // A loss, the gradient norm or a weight is infinite or NaN.
constexpr int kExitRankMissing = 86;   // A rank failed, or did not respond in time.
constexpr int kExitInterrupted = 130;  // A signal stopped the run; as shells report SIGINT.

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitBadUsage;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return kExitBadFile;
    case absl::StatusCode::kOutOfRange:
      return kExitNotFinite;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return kExitRankMissing;
    default:
      return kExitFailed;
  }
}

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "weft: %s\n", std::string(status.message()).c_str());
}

// Returns the configuration if all ranks have parsed their command lines. Collective: all ranks.
absl::StatusOr<weft::TrainConfig> AgreedConfig(weft::Bootstrap& bootstrap,
                                               absl::StatusOr<weft::Command> command) {
  WEFT_ASSIGN_OR_RETURN(const absl::Duration timeout, weft::DefaultTimeout());
  WEFT_RETURN_IF_ERROR(weft::AgreeOnStatus(bootstrap, command.status(), timeout));
  return std::get<weft::TrainConfig>(*std::move(command));
}

absl::StatusOr<weft::TrainReport> RunTrain(weft::Bootstrap& bootstrap, absl::StatusOr<weft::Command> command,
                                           weft::StopSignals& signals) {
  WEFT_ASSIGN_OR_RETURN(const weft::TrainConfig config, AgreedConfig(bootstrap, std::move(command)));
  weft::TrainEnvironment environment;
  environment.watchdog = true;
  environment.stop = &signals.EnableGracefulStop();
  environment.output = stdout;
  environment.terminal = weft::IsOutputTerminal();
  return weft::Train(bootstrap, config, environment);
}

int TrainOnAllRanks(absl::StatusOr<weft::Command> command) {
  weft::StopSignals signals;  // Before MPI and OpenMP start threads.
  const auto bootstrap = weft::MakeMpiBootstrap();
  if (!bootstrap.ok()) {
    PrintError(bootstrap.status());
    return kExitFailed;
  }
  const absl::StatusOr<weft::TrainReport> report = RunTrain(**bootstrap, std::move(command), signals);
  if (absl::IsDeadlineExceeded(report.status())) {
    // MPI_Finalize would wait for the missing rank, so the process exits without it.
    std::fprintf(stderr, "weft: rank %d: %s\n", (*bootstrap)->rank(),
                 std::string(report.status().message()).c_str());
    std::_Exit(kExitRankMissing);
  }
  if (!report.ok() && (*bootstrap)->rank() == 0) {
    PrintError(report.status());
  }
  if (report.ok() && report->stopped) {
    if ((*bootstrap)->rank() == 0) {
      std::fprintf(stderr, "weft: stopped by a signal after step %lld\n",
                   static_cast<long long>(report->steps));
    }
    return kExitInterrupted;
  }
  return ExitCodeOf(report.status());
}

}  // namespace

int main(int argc, char** argv) {
  weft::LetIdleThreadsSleep(argv);
  absl::StatusOr<weft::Command> command =
      weft::ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (command.ok() && std::holds_alternative<weft::PrintText>(*command)) {
    if (!weft::IsNonzeroRank()) {
      std::fputs(std::get<weft::PrintText>(*command).text.c_str(), stdout);
    }
    return kExitDone;
  }
  return TrainOnAllRanks(std::move(command));
}
