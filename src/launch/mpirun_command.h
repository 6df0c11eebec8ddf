// Command line of mpirun for one attempt of a launch.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/launch/launch.h"

namespace weft::internal {

using Variables = std::vector<std::pair<std::string, std::string>>;

// True if all ranks run on this host. `in_slurm_job`: mpirun would take the hosts of the job.
bool RanksAreLocal(const LaunchOptions& options, bool in_slurm_job);

// How ranks are bound to the NUMA nodes of each host.
struct NumaMapping {
  int numa_nodes;
  std::optional<int64_t> ranks_on_each;  // Unset: ranks are dealt in turn.

  std::string ToString() const;  // For the user.
};
// Nothing if ranks are not bound. `host_numa_nodes`: those of this host. `in_slurm_job`: as RanksAreLocal.
std::optional<NumaMapping> MapToNumaNodes(const LaunchOptions& options, int host_numa_nodes,
                                          bool in_slurm_job);

// The arguments of mpirun, with its own name first. `mapping`: as MapToNumaNodes.
// `agent`: the first words of the command that starts a daemon on another host; `orted` follows them.
//   Empty: mpirun starts the daemon itself.
// `exported`: the names of environment variables that ranks of other hosts need.
std::vector<std::string> MpirunCommand(const LaunchOptions& options,
                                       const std::optional<NumaMapping>& mapping, const std::string& agent,
                                       const std::vector<std::string>& exported,
                                       const std::vector<std::string>& program);

// The names of those variables of `environment` ("NAME=value") that the ranks read: WEFT_*, OMP_* and GOMP_*.
std::vector<std::string> ExportedNames(const std::vector<std::string>& environment);

// Environment variables of mpirun with the defaults of a launch. The caller's environment overrides them.
// `as_root`: the user is root, whom mpirun refuses by default.
Variables DefaultVariables(bool as_root);

// The variables that make Open MPI put all of its files, on every host, into `folder`.
Variables FolderVariables(const std::string& folder);

}  // namespace weft::internal
