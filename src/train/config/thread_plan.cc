#include "weft/train/thread_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "weft/core/size_text.h"
#include "weft/core/status.h"
#include "weft/core/topology.h"
#include "weft/mesh/launch_environment.h"

namespace weft {
namespace {

// For each CPU, the number of ranks that may run on it.
std::map<int, int> RanksOnCpu(const NodePlacement& placement) {
  std::map<int, int> ranks;
  for (const std::vector<int>& cpus : placement.cpus.of_rank) {
    for (const int cpu : cpus) {
      ++ranks[cpu];
    }
  }
  return ranks;
}

std::vector<std::string> PlacementWarnings(const NodePlacement& placement, size_t used) {
  const size_t ranks = placement.cpus.of_rank.size();
  const auto available = static_cast<size_t>(placement.node_cpus);
  if (used < available) {
    return {absl::StrCat(Count(ranks, "rank"), " may use only ", Count(used, "CPU"), " of the ", available,
                         " available: start with ", placement.unbound_start)};
  }
  if (const auto& quota = placement.cpus.quota; quota && quota->cpus < quota->ranks) {
    const bool is_shared = quota->ranks > 1;
    return {absl::StrCat(Count(quota->ranks, "rank"), is_shared ? " share" : " has", " the time of ",
                         Count(quota->cpus, "CPU"), ", the limit of a control group: raise it ",
                         "(docker run --cpus)", is_shared ? ", or start fewer ranks per node" : "")};
  }
  if (ranks > used) {
    return {absl::StrCat(Count(ranks, "rank"), " share ", Count(used, "CPU"), ": start at most ",
                         Count(used, "rank"), " per node for the best speed")};
  }
  return {};
}

// Number of CPUs on which the launcher of this process may run: its ranks could use as many.
int LauncherCpus() { return CpuCountOfProcess(getppid()).value_or(1); }

absl::StatusOr<std::optional<int>> ThreadLimit() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  int limit = 0;
  if (!absl::SimpleAtoi(text, &limit) || limit < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("OMP_NUM_THREADS is '", text, "': it must be a positive number, or unset"));
  }
  return limit;
}

}  // namespace

ThreadPlan PlanThreads(const NodePlacement& placement) {
  const std::map<int, int> ranks_on_cpu = RanksOnCpu(placement);
  const std::vector<int>& own = placement.cpus.of_rank[static_cast<size_t>(placement.cpus.self)];
  int sharers = 1;
  for (const int cpu : own) sharers = std::max(sharers, ranks_on_cpu.at(cpu));
  ThreadPlan plan;
  plan.threads = std::max(1, static_cast<int>(placement.cpus.Share()));
  plan.reason = sharers == 1 ? absl::StrCat(Count(own.size(), "CPU"), " of its own")
                             : absl::StrCat(Count(own.size(), "CPU"), " shared by ", sharers, " ranks");
  if (placement.cpus.IsLimitedByQuota()) {
    const RankCpus::Quota& quota = *placement.cpus.quota;
    absl::StrAppend(&plan.reason, "; its control group limits ", Count(quota.ranks, "rank"),
                    " to the time of ", Count(quota.cpus, "CPU"));
  }
  if (placement.limit && *placement.limit < plan.threads) {
    plan.threads = *placement.limit;
    plan.reason = absl::StrCat("OMP_NUM_THREADS; the rank has ", plan.reason);
  }
  plan.warnings = PlacementWarnings(placement, ranks_on_cpu.size());
  return plan;
}

absl::StatusOr<NodePlacement> FindPlacement(Bootstrap& bootstrap, absl::Duration timeout) {
  NodePlacement placement;
  const absl::StatusOr<std::optional<int>> limit = ThreadLimit();
  WEFT_ASSIGN_OR_RETURN(placement.cpus, ExchangeRankCpus(bootstrap, limit.status(), timeout));
  placement.limit = *limit;
  placement.node_cpus = LauncherCpus();
  const LaunchEnvironment environment = ReadLaunchEnvironment();
  if (environment.launcher == Launcher::kSlurm) {
    placement.node_cpus = std::min(placement.node_cpus, environment.node_cpus.value_or(placement.node_cpus));
    placement.unbound_start = "srun --cpu-bind=none";
  } else if (environment.uses_weft_launch) {
    placement.unbound_start = "weft launch --bind none";
  }
  return placement;
}

}  // namespace weft
