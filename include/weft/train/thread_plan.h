// Number of compute threads of a rank, planned from the CPUs that the ranks of its node may use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"
#include "weft/mesh/rank_cpus.h"

namespace weft {

struct ThreadPlan {
  int threads = 1;
  std::string reason;                 // "2 CPUs shared by 4 ranks".
  std::vector<std::string> warnings;  // Bad placements of ranks, each with a remedy.
};

// The CPUs of one node and of its ranks.
struct NodePlacement {
  RankCpus cpus;
  int node_cpus = 1;         // CPUs on which the launcher may run: ranks could use as many.
  std::optional<int> limit;  // OMP_NUM_THREADS, if it is set.
  // The command that starts ranks which may use all CPUs of the node.
  std::string unbound_start = "mpirun --bind-to none";
};

// Divides each CPU equally among the ranks that may run on it. The thread count is the sum of the rank's
// shares, at most its share of the quota of control groups, rounded down, at least 1 and at most `limit`.
ThreadPlan PlanThreads(const NodePlacement& placement);

// Returns the placement of the node of the calling rank.
// Collective: all ranks.
// Errors: kInvalidArgument (OMP_NUM_THREADS is not a positive number), kDeadlineExceeded.
absl::StatusOr<NodePlacement> FindPlacement(Bootstrap& bootstrap, absl::Duration timeout);

}  // namespace weft
