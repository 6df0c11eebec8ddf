// Number of threads with which a rank computes, planned from the CPUs that the ranks of its node may use.
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
      warnings;  // Faults of the placement of ranks, each with the mpirun flag that mends it.
};

// The CPUs of one node and of its ranks.
struct NodePlacement {
  std::vector<std::vector<int>> cpus_of_rank;  // CPUs on which each rank of the node may run, ascending.
  int node_cpus = 1;                           // Number of CPUs that the ranks of the node might use.
  int self = 0;                                // Index of the calling rank in cpus_of_rank.
  std::optional<int> limit;                    // OMP_NUM_THREADS, where it is set.
};

// Divides every CPU among the ranks that may run on it. A rank gets at least one thread, and at most `limit`.
ThreadPlan PlanThreads(const NodePlacement& placement);

// Returns the placement of the node of the calling rank.
// Collective: all ranks.
// Errors: kInvalidArgument (OMP_NUM_THREADS is no positive number), kDeadlineExceeded.
absl::StatusOr<NodePlacement> FindPlacement(Bootstrap& bootstrap, absl::Duration timeout);

}  // namespace weft
