#include "weft/launch/host_daemon.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include <absl/time/time.h>

#include "src/launch/daemon_process.h"
#include "src/launch/job_folder.h"
#include "src/launch/mpirun_command.h"
#include "src/launch/processes.h"
#include "src/launch/supervisor.h"
#include "src/launch/verdict.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Ranks of other hosts may end later than those of this host.
constexpr absl::Duration kLossLimit = absl::Seconds(60);

}  // namespace

absl::StatusOr<int> RunHostDaemon(const HostDaemonOptions& options) {
  // A batch system sends these signals to every process of a job. The ranks act on them, but the daemon must
  // outlive the ranks.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}) std::signal(signal, SIG_IGN);
  const internal::SignalQueue signals({SIGCHLD});
  WEFT_ASSIGN_OR_RETURN(const internal::JobFolder folder, internal::JobFolder::Join(options.folder));
  internal::JobFolder::RemoveAbandoned(folder.path());
  std::vector<std::string> command = options.command;
  // orted must stay in the foreground, where this process can wait for it.
  command.erase(std::remove(command.begin(), command.end(), "--daemonize"), command.end());
  WEFT_ASSIGN_OR_RETURN(
      const auto daemon,
      internal::DaemonProcess::Start(command, internal::FolderVariables(folder.path()), folder.path(),
                                     {STDOUT_FILENO, STDERR_FILENO}, internal::DescendantsOf(getpid())));
  internal::Requests none(/*ranks_are_local=*/true);
  return ExitCodeOf(Supervise(daemon, signals, none, {.loss = kLossLimit}));
}

}  // namespace weft
