// mpirun or orted as a child process, together with all processes that it starts.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

namespace weft::internal {

// REQUIRES: this process has one thread and no other children, and SIGCHLD is blocked.
class DaemonProcess {
 public:
  // Starts the program in a session of its own, which signals of the terminal do not reach. Its standard input
  // is empty. It gets SIGTERM if this process is killed. `variables` replace those of the environment.
  // Errors: kInvalidArgument (there is no such program), kInternal.
  static absl::StatusOr<DaemonProcess> Start(
      const std::vector<std::string>& command,
      const std::vector<std::pair<std::string, std::string>>& variables);

  // The ranks that it has started on this host and that have not ended.
  std::vector<pid_t> Ranks() const;

  void Signal(int signal) const;

  // The wait status of the daemon once it has ended. Reaps all children that have ended.
  std::optional<int> Poll();

  // Kills all processes that are left of it, after `grace`, and waits for their end.
  static void EndDescendants(absl::Duration grace);

  pid_t pid() const { return pid_; }

 private:
  explicit DaemonProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_;
  std::optional<int> wait_status_;
};

}  // namespace weft::internal
