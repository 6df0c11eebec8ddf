#include "src/launch/mpirun_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "weft/core/status.h"

namespace weft {
namespace {

using Words = std::vector<std::string>;

constexpr int64_t kMaxSlots = 1'000'000;  // The most slots of one host. Sums over hosts do not overflow.
constexpr int64_t kMaxRestarts = 1'000'000;

// One element of --host.
struct NamedHost {
  std::string name;
  int64_t slots;
};

// "node1:4", or "node1" for one slot.
absl::StatusOr<NamedHost> ParseHost(const std::string& element) {
  const std::vector<std::string> parts = absl::StrSplit(element, ':');
  int64_t slots = 1;
  const bool has_slots = parts.size() == 2;
  if (parts.size() > 2 || parts[0].empty() || (has_slots && !absl::SimpleAtoi(parts[1], &slots)) ||
      slots < 1 || slots > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat("--host: '", element,
                                                   "' is not a host with its slots, from 1 to ", kMaxSlots,
                                                   ": write node1:4,node2:4"));
  }
  return NamedHost{parts[0], slots};
}

// The hosts of --host, at least one. A host may be named twice: mpirun adds up its slots.
absl::StatusOr<std::vector<NamedHost>> ParseHosts(const std::string& text) {
  std::vector<NamedHost> hosts;
  for (const absl::string_view element : absl::StrSplit(text, ',')) {
    WEFT_ASSIGN_OR_RETURN(NamedHost host, ParseHost(std::string(element)));
    hosts.push_back(std::move(host));
  }
  return hosts;
}

int64_t SumOfSlots(const std::vector<NamedHost>& hosts) {
  int64_t slots = 0;
  for (const NamedHost& host : hosts) slots += host.slots;
  return slots;
}

absl::Status CheckHosts(const LaunchOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<NamedHost> hosts, ParseHosts(options.hosts));
  const int64_t slots = SumOfSlots(hosts);
  if (options.ranks && *options.ranks > slots && !options.oversubscribe) {
    return absl::InvalidArgumentError(absl::StrCat("-n ", *options.ranks,
                                                   " needs as many slots, but --host has ", slots,
                                                   ": write node1:4,node2:4, or add --oversubscribe"));
  }
  return absl::OkStatus();
}

// mpirun reports a missing file after each of all attempts, and as if a rank had failed. It waits for the
// writer of a pipe.
absl::Status CheckHostfile(const std::string& path) {
  const auto error = [&](absl::StatusCode code, absl::string_view what) {
    return absl::Status(code, absl::StrCat("--hostfile ", path, ": ", what));
  };
  if (access(path.c_str(), R_OK) != 0) {
    const int cause = errno;
    return error(cause == EACCES ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kNotFound,
                 std::strerror(cause));
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return absl::OkStatus();
  return error(absl::StatusCode::kNotFound, std::filesystem::is_directory(path, ignored)
                                                ? "is a folder: name a file"
                                                : "is no regular file: name one");
}

// Ranks on each host of --host if all have equally many. Nothing if that is not known.
std::optional<int64_t> RanksOnHost(const LaunchOptions& options) {
  const absl::StatusOr<std::vector<NamedHost>> hosts = ParseHosts(options.hosts);
  if (!hosts.ok()) return std::nullopt;
  const int64_t slots = hosts->front().slots;
  std::set<std::string> names;
  for (const NamedHost& host : *hosts) {
    if (host.slots != slots || !names.insert(host.name).second) return std::nullopt;
  }
  const int64_t ranks = SumOfSlots(*hosts);
  return options.ranks.value_or(ranks) == ranks ? std::optional(slots) : std::nullopt;
}

// True if each host of --host that gets ranks is known to get at least `least`. mpirun fills the slots of a
// host before those of the next; its own host may come first.
bool EachNamedHostGets(int64_t least, const LaunchOptions& options) {
  const absl::StatusOr<std::vector<NamedHost>> hosts = ParseHosts(options.hosts);
  if (!hosts.ok()) return false;
  std::map<std::string, int64_t> slots;
  for (const NamedHost& host : *hosts) slots[host.name] += host.slots;
  const auto [fewest, most] = std::minmax_element(
      slots.begin(), slots.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (fewest->second < least) return false;
  const int64_t total = SumOfSlots(*hosts);
  if (options.ranks.value_or(total) == total) return true;
  // The last host that gets ranks gets the rest. Which one that is matters unless all are alike.
  const int64_t rest = *options.ranks % fewest->second;
  return fewest->second == most->second && (rest == 0 || rest >= least);
}

// True if each host that gets ranks is known to get at least `least`.
bool EachHostGets(int64_t least, const LaunchOptions& options, bool in_slurm_job) {
  if (!options.hosts.empty()) return EachNamedHostGets(least, options);
  return internal::RanksAreLocal(options, in_slurm_job) && options.ranks.value_or(least) >= least;
}

}  // namespace

std::string_view Name(RankBinding binding) { return binding == RankBinding::kNuma ? "numa" : "none"; }

absl::Status Validate(const LaunchOptions& options) {
  if (options.ranks && *options.ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("-n ", *options.ranks, " must be positive"));
  }
  if (options.max_restarts < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-restarts ", options.max_restarts, " must not be negative; 0 means no restart"));
  }
  if (options.max_restarts > kMaxRestarts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-restarts ", options.max_restarts, " must be at most ", kMaxRestarts));
  }
  if (options.restart_delay_s < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--restart-delay ", options.restart_delay_s, " must not be negative"));
  }
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return absl::InvalidArgumentError("--host and --hostfile exclude each other: give one of them");
  }
  if (!options.hostfile.empty()) return CheckHostfile(options.hostfile);
  return options.hosts.empty() ? absl::OkStatus() : CheckHosts(options);
}

namespace internal {

bool RanksAreLocal(const LaunchOptions& options, bool in_slurm_job) {
  const bool has_hosts = !options.hosts.empty() || !options.hostfile.empty();
  return !has_hosts && !in_slurm_job;
}

std::string NumaMapping::ToString() const {
  return absl::StrCat("binds ranks to the ", numa_nodes, numa_nodes == 1 ? " NUMA node" : " NUMA nodes",
                      " of each host, ", ranks_on_each ? absl::StrCat(*ranks_on_each, " on each") : "in turn",
                      "; --bind none does not bind them");
}

std::optional<NumaMapping> MapToNumaNodes(const LaunchOptions& options, int host_numa_nodes,
                                          bool in_slurm_job) {
  const bool is_useful =
      host_numa_nodes > 1 && !options.oversubscribe && EachHostGets(host_numa_nodes, options, in_slurm_job);
  const RankBinding chosen = options.bind.value_or(is_useful ? RankBinding::kNuma : RankBinding::kNone);
  if (chosen == RankBinding::kNone) return std::nullopt;
  std::optional<int64_t> ranks;  // Of each host.
  if (RanksAreLocal(options, in_slurm_job)) ranks = options.ranks;
  if (!options.hosts.empty()) ranks = RanksOnHost(options);
  NumaMapping mapping{host_numa_nodes, std::nullopt};
  if (ranks && *ranks % host_numa_nodes == 0) mapping.ranks_on_each = *ranks / host_numa_nodes;
  return mapping;
}

Words MpirunCommand(const LaunchOptions& options, const std::optional<NumaMapping>& mapping,
                    const std::string& agent, const Words& exported, const Words& program) {
  Words command = {options.mpirun};
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  if (options.ranks) add({"-n", absl::StrCat(*options.ranks)});
  if (!options.hosts.empty()) add({"--host", options.hosts});
  if (!options.hostfile.empty()) add({"--hostfile", options.hostfile});
  if (options.oversubscribe) add({"--oversubscribe"});
  // Ranks are numbered host by host.
  if (mapping) {
    const std::optional<int64_t>& ranks = mapping->ranks_on_each;
    add({"--map-by", ranks ? absl::StrCat("ppr:", *ranks, ":numa") : "numa"});
    // NUMA nodes may have different numbers of CPUs: some may have fewer than ranks.
    add({"--bind-to", "numa:overload-allowed"});
  } else {
    add({"--map-by", "slot", "--bind-to", "none"});
  }
  if (!agent.empty()) add({"--mca", "orte_launch_agent", absl::StrCat(agent, " orted")});
  for (const auto& [name, value] : options.mca) add({"--mca", name, value});
  for (const std::string& name : exported) add({"-x", name});
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

Words ExportedNames(const Words& environment) {
  Words names;
  for (const std::string& variable : environment) {
    for (const char* prefix : {"WEFT_", "OMP_", "GOMP_"}) {
      if (absl::StartsWith(variable, prefix)) names.push_back(variable.substr(0, variable.find('=')));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Variables DefaultVariables(bool as_root) {
  // Containers often forbid kernel-assisted copies, and weft does not need them. If a host is lost, mpirun
  // and the daemons of the other hosts notice it within a minute; by default after more than five.
  Variables variables = {{"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
                         {"OMPI_MCA_oob_tcp_keepalive_time", "30"},
                         {"OMPI_MCA_oob_tcp_keepalive_intvl", "10"},
                         {"OMPI_MCA_oob_tcp_keepalive_probes", "3"}};
  if (as_root) {
    variables.emplace_back("OMPI_ALLOW_RUN_AS_ROOT", "1");
    variables.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  return variables;
}

Variables FolderVariables(const std::string& folder) {
  return {{"OMPI_MCA_orte_tmpdir_base", folder},
          {"OMPI_MCA_btl_vader_backing_directory", folder},
          {"OMPI_MCA_osc_sm_backing_directory", folder}};
}

}  // namespace internal
}  // namespace weft
