// mpirun or orted as a child process, together with all processes that it starts.
#pragma once

#include <unistd.h>

#include <array>
#include <optional>
#include <set>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

namespace weft::internal {

// The processes that a daemon has started directly and that have not ended.
struct DaemonChildren {
  std::vector<pid_t> ranks;  // Ranks on this host.
  // The hosts of processes, such as ssh, that run a daemon on another host and end with it.
  std::vector<std::string> agent_hosts;
};

// The host on which an agent with this command, such as ssh, runs a daemon; for srun, all its hosts. Nothing
// if the command is that of no agent. `folder`: as DaemonProcess::Start.
std::optional<std::string> AgentHost(const std::vector<std::string>& command, const std::string& folder);

// REQUIRES: all threads of this process block SIGCHLD, and its main thread calls Start. While a daemon
// exists, the process starts nothing else.
class DaemonProcess {
 public:
  // Starts the program in a session of its own, which signals of the terminal do not reach. Its standard
  // input is empty. It gets SIGTERM if this process is killed. `variables` replace those of the environment.
  // `folder`: the folder of the attempt, which the command of every daemon contains. `outputs`: descriptors
  // of this process that become the standard output and error of the program. `inherited`: descendants that
  // this process had before its first daemon, such as the `cat` that a shell starts in
  // `exec weft launch > >(cat)`.
  // Errors: kInvalidArgument (there is no such program), kInternal.
  static absl::StatusOr<DaemonProcess> Start(
      const std::vector<std::string>& command,
      const std::vector<std::pair<std::string, std::string>>& variables, std::string folder,
      std::array<int, 2> outputs = {STDOUT_FILENO, STDERR_FILENO}, const std::vector<pid_t>& inherited = {});

  // A process is a rank until it has ended. That it is one is seen in its environment, which is gone once the
  // kernel frees its memory, so ranks that have been seen are remembered.
  DaemonChildren Children();

  // The number of daemons of other hosts that have connected to this one and not through another daemon.
  // Nothing if that cannot be seen.
  std::optional<size_t> ConnectedDaemons() const;

  void Signal(int signal) const;

  // The wait status of the daemon once it has ended. Reaps all children that have ended.
  std::optional<int> Poll();

  // Waits until all descendants of this process have ended, but the inherited ones. Kills those that are left
  // after `grace`.
  void EndDescendants(absl::Duration grace);

  pid_t pid() const { return pid_; }

 private:
  DaemonProcess(pid_t pid, std::string folder, const std::vector<pid_t>& inherited)
      : pid_(pid), folder_(std::move(folder)), inherited_(inherited.begin(), inherited.end()) {}
  void Reap();

  pid_t pid_;
  std::string folder_;
  std::set<pid_t> inherited_;
  std::set<pid_t> ranks_;  // Those of the latest Children.
  std::optional<int> wait_status_;
};

}  // namespace weft::internal
