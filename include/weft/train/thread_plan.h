// How many threads each rank of a node computes with, from the CPUs that each may run on. Pure but for one
// look at the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

struct ThreadPlan {
  int threads = 1;
  std::string reason;  // "2 CPUs shared by 4 ranks".
  std::vector<std::string>
      warnings;  // What is wrong with the placement of ranks, and the mpirun flag that mends it.
};

// What the plan is made from, for one node.
struct NodePlacement {
  std::vector<std::vector<int>> cpus_of_rank;  // CPUs that each rank of the node may run on, ascending.
  int node_cpus = 1;                           // CPUs that the ranks of the node could have.
  int self = 0;                                // The caller's place in cpus_of_rank.
  std::optional<int> limit;                    // OMP_NUM_THREADS, where it is set.
};

// Every CPU is divided among the ranks that may run on it; a rank has at least one thread, and never more
// than `limit`.
ThreadPlan PlanThreads(const NodePlacement& placement);

// The placement of this rank's node. Collective: all ranks. Errors: kInvalidArgument (OMP_NUM_THREADS is no
// positive number), kDeadlineExceeded.
absl::StatusOr<NodePlacement> FindPlacement(Bootstrap& bootstrap, absl::Duration timeout);

}  // namespace weft
