#include "weft/launch/launch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sys/types.h>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include "src/launch/daemon_process.h"
#include "src/launch/job_folder.h"
#include "src/launch/mpirun_command.h"
#include "src/launch/nonblocking_output.h"
#include "src/launch/output_relay.h"
#include "src/launch/processes.h"
#include "src/launch/supervisor.h"
#include "src/launch/verdict.h"
#include "weft/core/exit_codes.h"
#include "weft/core/status.h"
#include "weft/core/topology.h"
#include "weft/launch/signals.h"

namespace weft {
namespace {

using internal::AttemptEnd;
using internal::Variables;
using Words = std::vector<std::string>;

// mpirun ends within this time after its last rank, unless it waits for a host that it has lost.
constexpr absl::Duration kLossLimit = absl::Seconds(10);

std::set<int> SignalsToTake() {
  std::set<int> signals = {
      SIGCHLD, SIGINT, SIGTERM, SIGUSR1, internal::kStopSignal, internal::kLostReaderSignal};
  if (!IsIgnored(SIGHUP)) signals.insert(SIGHUP);
  return signals;
}

// The path of this program; empty if the system does not tell.
std::string ProgramPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

// True if mpirun can pass the path on to other hosts: it splits commands at spaces.
bool CanPassOn(const std::string& path) { return !path.empty() && !absl::StrContains(path, ' '); }

Variables AttemptVariables(const std::string& folder) {
  Variables variables = internal::FolderVariables(folder);
  for (auto& variable : internal::DefaultVariables(geteuid() == 0)) {
    if (std::getenv(variable.first.c_str()) == nullptr) variables.push_back(std::move(variable));
  }
  return variables;
}

Words CurrentEnvironment() {
  Words environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

// mpirun refuses this list beside the variables that it passes on to the ranks of a launch.
absl::Status CheckVariableList(const LaunchOptions& options) {
  constexpr const char* kList = "mca_base_env_list";
  const std::string variable = absl::StrCat("OMPI_MCA_", kList);
  const bool is_flag = std::any_of(options.mca.begin(), options.mca.end(),
                                   [](const auto& parameter) { return parameter.first == kList; });
  if (!is_flag && std::getenv(variable.c_str()) == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mpirun takes either -x or the list ", is_flag ? absl::StrCat("--mca ", kList) : variable,
                   ". weft launch uses -x, for variables whose names begin with WEFT_, OMP_ or GOMP_: ",
                   is_flag ? "remove the list" : "unset the list"));
}

bool IsInSlurmJob() { return std::getenv("SLURM_JOB_ID") != nullptr; }

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const RankProgram& program)
      : options_(options),
        program_(program),
        mapping_(internal::MapToNumaNodes(options, HostTopology().numa_nodes, IsInSlurmJob())),
        ranks_are_local_(RanksAreLocal(options)),
        signals_(SignalsToTake()),
        requests_(ranks_are_local_) {}

  absl::StatusOr<int> Run() {
    if (!ranks_are_local_ && !CanPassOn(program_path_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the path of this program must have no spaces, which mpirun cannot pass to other hosts: '",
          program_path_, "'"));
    }
    if (mapping_) internal::PrintMessage(mapping_->ToString());
    absl::StatusOr<Words> more = Words{};  // Arguments that the attempt adds to the command.
    for (int64_t attempt = 1;; ++attempt) {
      WEFT_ASSIGN_OR_RETURN(const AttemptEnd end, RunAttempt(*more));
      const internal::Verdict verdict =
          Judge(end, {attempt, options_.max_restarts, options_.restart_delay_s});
      if (!verdict.message.empty()) internal::PrintMessage(verdict.message);
      if (!verdict.restart) return verdict.exit_code;
      if (StopsWithin(absl::Seconds(options_.restart_delay_s))) {
        internal::PrintMessage(absl::StrCat("stopped by a signal before attempt ", attempt + 1));
        return kExitInterrupted;
      }
      more = program_.restart_arguments();
      if (more.ok()) continue;
      internal::PrintMessage(
          absl::StrCat("not starting attempt ", attempt + 1, ": ", more.status().message()));
      return verdict.exit_code;
    }
  }

 private:
  absl::StatusOr<AttemptEnd> RunAttempt(const Words& more) {
    WEFT_ASSIGN_OR_RETURN(const internal::JobFolder folder, internal::JobFolder::Create());
    internal::JobFolder::RemoveAbandoned(folder.path());
    Words program = program_.command;
    program.insert(program.end(), more.begin(), more.end());
    const std::string agent =
        CanPassOn(program_path_) ? absl::StrCat(program_path_, " host-daemon ", folder.path()) : "";
    internal::OutputRelay relay;
    WEFT_RETURN_IF_ERROR(relay.Open());
    WEFT_ASSIGN_OR_RETURN(const auto mpirun,
                          internal::DaemonProcess::Start(
                              internal::MpirunCommand(options_, mapping_, agent,
                                                      internal::ExportedNames(CurrentEnvironment()), program),
                              AttemptVariables(folder.path()), folder.path(), relay.outputs(), inherited_));
    relay.CloseOutputs();
    AttemptEnd end =
        Supervise(mpirun, signals_, requests_,
                  {.start = options_.startup_timeout, .loss = kLossLimit, .waits_for_reader = [&] {
                     return relay.WaitsForReader();
                   }});
    relay.Finish(signals_, requests_);
    end.stop_requested = requests_.stop_requested();
    end.lost_output = relay.lost_output() && !requests_.user_stops();
    // Ranks of other hosts cannot be seen, and a rank that was killed was started.
    end.started_no_rank = end.started_no_rank && ranks_are_local_ && !internal::IsExitOfSignal(end.value);
    return end;
  }

  // Waits for `delay`. Returns true as soon as a signal requests a stop.
  bool StopsWithin(absl::Duration delay) {
    const auto begin = std::chrono::steady_clock::now();
    const auto left = [&] { return delay - absl::FromChrono(std::chrono::steady_clock::now() - begin); };
    while (!requests_.stop_requested() && left() > absl::ZeroDuration()) {
      const std::optional<int> signal = signals_.Next(std::max(left(), absl::ZeroDuration()));
      if (signal && *signal != SIGCHLD) requests_.Add(*signal);
    }
    requests_.EndAttempt();
    return requests_.stop_requested();
  }

  const LaunchOptions& options_;
  const RankProgram& program_;
  const std::string program_path_ = ProgramPath();  // A rebuild between two attempts moves the program away.
  const std::optional<internal::NumaMapping> mapping_;
  const bool ranks_are_local_;
  const internal::SignalQueue signals_;
  internal::Requests requests_;
  const std::vector<pid_t> inherited_ = internal::DescendantsOf(getpid());
};

}  // namespace

bool RanksAreLocal(const LaunchOptions& options) { return internal::RanksAreLocal(options, IsInSlurmJob()); }

absl::StatusOr<int> Launch(const LaunchOptions& options, const RankProgram& program) {
  WEFT_RETURN_IF_ERROR(Validate(options));
  WEFT_RETURN_IF_ERROR(CheckVariableList(options));
  std::signal(SIGPIPE, SIG_IGN);  // Messages for a lost reader are dropped.
  return Launcher(options, program).Run();
}

}  // namespace weft
