#include "src/cli/launch_flags.h"

#include "src/cli/flag_group.h"

namespace weft {
namespace {

void AddRankFlags(CLI::App& app, LaunchOptions& options) {
  FlagGroup group(app, "Ranks");
  group.Number("-n,--ranks", options.ranks, "Number of ranks [all slots of the hosts]");
  group.Text("--host", options.hosts, "Hosts and their slots: node1:4,node2:4 [this one, or the Slurm job's]",
             "LIST");
  group.Text("--hostfile", options.hostfile, "File of hosts and slots, in the format of Open MPI", "FILE");
  group.Switch("--oversubscribe", options.oversubscribe, "Allow more ranks than slots");
  group.OneOfOrUnset(
      "--bind", options.bind, {RankBinding::kNuma, RankBinding::kNone},
      "Bind each rank to a NUMA node, or to nothing (none) [numa if each host has several, and "
      "ranks for all]");
  group.Pairs("--mca", options.mca, "Set a parameter of Open MPI: --mca btl_tcp_if_include eth0",
              "NAME VALUE");
}

void AddRestartFlags(CLI::App& app, LaunchOptions& options) {
  FlagGroup group(app, "Restarts");
  group.Number("--max-restarts", options.max_restarts, "Restarts of the whole launch; 0: none");
  group.Number("--restart-delay", options.restart_delay_s, "Seconds before a restart");
}

}  // namespace

void AddLaunchFlags(CLI::App& app, LaunchOptions& options) {
  AddRankFlags(app, options);
  AddRestartFlags(app, options);
}

}  // namespace weft
