// Supervision of Open MPI's daemon on a host of `weft launch` other than the one that runs mpirun.
//
// mpirun starts `weft host-daemon FOLDER orted …` there instead of `orted …`. Without this supervision, orted
// and its ranks would remain after the link to mpirun is cut for good.
#pragma once

#include <string>
#include <vector>

#include <absl/status/statusor.h>

namespace weft {

struct HostDaemonOptions {
  std::string folder;                // For the files of Open MPI; created if it does not exist.
  std::vector<std::string> command;  // orted and its arguments.
};

// Runs the command, ends the processes that it leaves behind, and removes the folder. Returns the exit code
// of the command.
// REQUIRES: the process has one thread and no children.
// Errors: kInvalidArgument (there is no such program), kInternal (no process or folder can be created).
absl::StatusOr<int> RunHostDaemon(const HostDaemonOptions& options);

}  // namespace weft
