// Start of a program on MPI ranks by mpirun, with restarts after failures.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

namespace weft {

// Binding of ranks to CPUs. "numa", "none".
enum class RankBinding : uint8_t {
  kNuma,  // Each rank to one NUMA node; consecutive ranks to the same one, as far as possible.
  kNone,  // A rank may run on all CPUs of its host.
};
std::string_view Name(RankBinding binding);

// Options of mpirun, and the number of restarts of a failed run.
struct LaunchOptions {
  std::optional<int64_t> ranks;  // Unset: all slots, as mpirun counts them.
  std::string hosts;             // "node1:4,node2:4"; empty: this host, or the hosts of a Slurm job.
  std::string hostfile;          // Hosts and slots in the format of Open MPI; empty: none.
  bool oversubscribe = false;    // Allows more ranks than slots.
  // Unset: kNuma if this host has several NUMA nodes, as the others are assumed to have, and every host is
  // known to get at least as many ranks. Else, and with `oversubscribe`, kNone.
  std::optional<RankBinding> bind;
  std::vector<std::pair<std::string, std::string>> mca;  // Parameters of Open MPI.
  int64_t max_restarts = 3;  // In the whole launch, at most 1,000,000; progress does not reset the count.
  int64_t restart_delay_s = 5;
  std::string mpirun = "mpirun";  // A path, or a name that PATH finds.
  // Limit from the start of mpirun until all other hosts have answered it, unless ranks run on this host.
  absl::Duration startup_timeout = absl::Seconds(300);
};

// Checks the options. Errors: kInvalidArgument (names the flag of `weft launch` and what is wrong with its
// value), kNotFound, kPermissionDenied (the hostfile cannot be read).
absl::Status Validate(const LaunchOptions& options);

// The program of every rank.
struct RankProgram {
  std::vector<std::string> command;  // Path and arguments.
  // Called before every attempt but the first. Returns arguments to add to the command. An error, whose
  // message says why, prevents the attempt and all further ones.
  std::function<absl::StatusOr<std::vector<std::string>>()> restart_arguments;
};

// True if mpirun starts all ranks on this host: neither the options nor a Slurm job name others.
bool RanksAreLocal(const LaunchOptions& options);

// Starts `program` by mpirun and waits until it has ended for good. Returns the exit code for the user: that
// of the last attempt, and 130 after a signal. docs/launching.md lists which exit codes lead to another
// attempt.
// Prints a line on standard error for each restart, and one if ranks are bound. Drops a line that the reader
// of a pipe or socket does not take within a second.
//
// Signals: the first SIGINT, SIGTERM or SIGHUP reaches the ranks as SIGUSR2, and prevents further attempts. A
//   second one of the same kind, except for SIGHUP, ends all processes at once, and so does the first one
//   before ranks can exist. SIGUSR1 is passed on to the ranks. SIGPIPE is ignored from then on.
// Lost reader: if standard output is a pipe or a socket, and nobody reads it any more, the ranks are stopped
//   as by SIGTERM. No further attempt follows, and the exit code is 1 in place of 130.
// On return no process that the launch started is left on this host, and no file of Open MPI: each attempt
//   has a folder of its own for them. A host daemon does the same on other hosts (weft/launch/host_daemon.h).
// REQUIRES: the process has one thread and no children; it waits for every child and adopts orphans.
// Errors: those of Validate, kInvalidArgument (mpirun is not installed; ranks run on other hosts, and the
//   path of this program has spaces; mca_base_env_list is set), kInternal (no
//   process or folder can be created).
absl::StatusOr<int> Launch(const LaunchOptions& options, const RankProgram& program);

}  // namespace weft
