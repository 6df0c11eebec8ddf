// Benchmark of collectives between simulated nodes: the real engine, on virtual time.
//
//   weft_bench_simulated_wire [--mib N] [--nodes N] [--per-node N] [--ops NAME,...] [--modes NAME,...]
//                             [--seed N] [--link GBIT LATENCY_US]
//
// Each row is a link, by default each of a grid of rates and latencies. Each number is the share of the
// link's speed that a collective reaches: see tests/comm/support/link_share.h. Copies and sums take no time.
//
//   waited      a thread waits
//   overlapped  all threads compute, so only the progress thread polls
//   constant    the same, with windows of constant size
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <absl/strings/str_join.h>

#include "tests/comm/support/link_share.h"

namespace weft::bench {
namespace {

using testing::LinkExperiment;
using testing::LinkOp;

const std::map<std::string, LinkOp> kOps = {
    {"all-gather", LinkOp::kAllGather},    {"reduce-scatter", LinkOp::kReduceScatter},
    {"all-reduce", LinkOp::kAllReduce},    {"all-to-all", LinkOp::kAllToAll},
    {"strided", LinkOp::kStridedAllToAll}, {"send-receive", LinkOp::kSendReceive},
    {"broadcast", LinkOp::kBroadcast}};
const std::vector<std::string> kModes = {"waited", "overlapped", "constant"};

struct Link {
  double gigabits;
  int64_t latency_us;
};

// The links on which the bytes in flight are few beside those of the message.
std::vector<Link> Grid(int64_t bytes) {
  std::vector<Link> links;
  for (const double gigabits : {1.0, 10.0, 25.0, 100.0, 400.0}) {
    for (const int64_t latency_us : {5, 50, 500, 5000}) {
      if (gigabits / 8 * 1e3 * static_cast<double>(latency_us) > static_cast<double>(bytes) / 4) continue;
      links.push_back({gigabits, latency_us});
    }
  }
  return links;
}

double ShareOf(LinkExperiment experiment, const std::string& op, const std::string& mode) {
  experiment.op = kOps.at(op);
  experiment.waited = mode == "waited";
  if (mode == "constant") experiment.options.max_budget_bytes = 1;
  return testing::UseOfLink(experiment).share;
}

void Run(LinkExperiment experiment, const std::vector<std::string>& ops,
         const std::vector<std::string>& modes, const std::vector<Link>& links) {
  std::printf("%s of %lld MiB on %d nodes of %d ranks, share of the wire\n\n",
              absl::StrJoin(ops, ", ").c_str(), static_cast<long long>(experiment.bytes >> 20),
              experiment.nodes, experiment.ranks_of_node);
  std::printf("%10s %10s", "Gbit/s", "latency us");
  for (const std::string& mode : modes) std::printf(" |%*s", static_cast<int>(6 * ops.size()), mode.c_str());
  std::printf("\n");
  for (const auto& [gigabits, latency_us] : links) {
    std::printf("%10.0f %10lld", gigabits, static_cast<long long>(latency_us));
    experiment.gigabits = gigabits;
    experiment.latency_ns = latency_us * 1000;
    for (const std::string& mode : modes) {
      std::printf(" |");
      for (const std::string& op : ops) std::printf(" %5.2f", ShareOf(experiment, op, mode));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using weft::bench::kModes;
  using weft::bench::kOps;
  CLI::App app("Share of a link's speed that collectives reach between simulated nodes");
  weft::testing::LinkExperiment experiment;
  experiment.memory_speed = 1e6;
  int mebibytes = 64;
  std::vector<std::string> ops = {"all-gather", "reduce-scatter", "all-reduce"};
  std::vector<std::string> modes = kModes;
  std::vector<double> link;
  app.add_option("--mib", mebibytes)->check(CLI::Range(1, 1024));
  app.add_option("--nodes", experiment.nodes)->check(CLI::Range(2, 64));
  app.add_option("--per-node", experiment.ranks_of_node)->check(CLI::Range(1, 64));
  app.add_option("--ops", ops)->delimiter(',')->check(CLI::IsMember(kOps));
  app.add_option("--modes", modes)->delimiter(',')->check(CLI::IsMember(kModes));
  app.add_option("--seed", experiment.seed, "of the schedule");
  app.add_option("--link", link, "Gbit/s and microseconds")->expected(2)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  experiment.bytes = int64_t{mebibytes} << 20;
  const std::vector<weft::bench::Link> links =
      link.empty() ? weft::bench::Grid(experiment.bytes)
                   : std::vector<weft::bench::Link>{{link[0], static_cast<int64_t>(link[1])}};
  weft::bench::Run(experiment, ops, modes, links);
  return 0;
}
