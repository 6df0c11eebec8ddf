// Growth of control traffic with the ranks: the real engine on simulated ranks.
//
//   weft_bench_simulated_control [RANKS PER_NODE]...
//
// Each row is a job. Columns: control messages that the busiest rank sends for a barrier, for an all-reduce
// of one f32, and until it has passed on the failure of another rank; ranks to which it sends in all; the
// virtual times of barrier and all-reduce, and from the failure until every rank has it; the largest memory
// of this process so far, divided by the ranks; and the duration of the simulation.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include "bench/or_die.h"
#include "tests/support/rank_engine.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

// Figures of the busiest or latest rank.
struct Growth {
  int64_t barrier_messages = 0;
  int64_t sum_messages = 0;
  int64_t failure_messages = 0;
  int64_t peers = 0;
  int64_t barrier_ns = 0;
  int64_t sum_ns = 0;
  int64_t failure_ns = 0;
};

absl::Status Measure(Bootstrap& bootstrap, int64_t& failed_at_ns, Growth& growth) {
  EngineOptions options;
  options.recorder_entries = 4;
  options.timeout = absl::Seconds(3600);
  WEFT_ASSIGN_OR_RETURN(const testing::RankEngine rank,
                        testing::RankEngine::Make(bootstrap, options, {.segment_bytes = size_t{1} << 18}));
  CommEngine& engine = *rank.engine;
  Runtime& runtime = bootstrap.runtime();
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
  int64_t sent = engine.counters().control_messages;
  const auto keep_most = [&](int64_t& messages) {
    const int64_t now = engine.counters().control_messages;
    messages = std::max(messages, now - std::exchange(sent, now));
  };
  WEFT_RETURN_IF_ERROR(engine.Barrier(lane).WaitReleased());
  sent = engine.counters().control_messages;
  int64_t begin = runtime.NowNs();
  WEFT_RETURN_IF_ERROR(engine.Barrier(lane).WaitReleased());
  growth.barrier_ns = std::max(growth.barrier_ns, runtime.NowNs() - begin);
  keep_most(growth.barrier_messages);
  float value = 1;
  begin = runtime.NowNs();
  WEFT_RETURN_IF_ERROR(engine.AllReduce(lane, &value, &value, DType::kF32, 1, ReduceOp::kSum).WaitReleased());
  growth.sum_ns = std::max(growth.sum_ns, runtime.NowNs() - begin);
  keep_most(growth.sum_messages);
  if (value != static_cast<float>(bootstrap.size())) return absl::DataLossError("the sum is wrong");
  // The last rank fails while all others wait for it.
  if (bootstrap.rank() == bootstrap.size() - 1) {
    runtime.SleepFor(20'000'000);
    failed_at_ns = runtime.NowNs();
    engine.Abort(absl::CancelledError("as planned"));
  } else {
    Work work = engine.Barrier(lane);
    const absl::Status failed = work.Wait();
    if (!absl::IsCancelled(failed)) return Annotate(failed, "the failure of the last rank");
    growth.failure_ns = std::max(growth.failure_ns, runtime.NowNs() - failed_at_ns);
  }
  keep_most(growth.failure_messages);
  growth.peers = std::max(growth.peers, engine.counters().wire_peers);
  return absl::OkStatus();
}

void Run(int ranks, int per_node) {
  SimOptions machine;
  machine.poll_ns = 4'000;
  Growth growth;
  int64_t failed_at_ns = 0;
  const auto begin = std::chrono::steady_clock::now();
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(ranks, per_node), machine,
                        [&](Bootstrap& bootstrap) { return Measure(bootstrap, failed_at_ns, growth); });
  OrDie(report.status());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](int64_t ns) { return static_cast<double>(ns) / 1e3; };
  std::printf("%7d %9d | %7lld %10lld %7lld %5lld | %9.0f %10.0f %9.0f | %8.0f %8.0f\n", ranks, per_node,
              static_cast<long long>(growth.barrier_messages), static_cast<long long>(growth.sum_messages),
              static_cast<long long>(growth.failure_messages), static_cast<long long>(growth.peers),
              us(growth.barrier_ns), us(growth.sum_ns), us(growth.failure_ns),
              static_cast<double>(usage.ru_maxrss) / ranks, seconds.count());
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  std::vector<std::pair<int, int>> jobs;
  for (int i = 1; i + 1 < argc; i += 2) jobs.emplace_back(std::atoi(argv[i]), std::atoi(argv[i + 1]));
  if (argc == 1) jobs = {{256, 1}, {256, 64}, {1024, 1}, {1024, 64}, {4096, 64}};
  const bool valid = argc % 2 == 1 && std::all_of(jobs.begin(), jobs.end(), [](const auto& job) {
                       return job.first > 1 && job.second > 0;
                     });
  if (!valid) {
    std::fprintf(stderr, "usage: %s [RANKS PER_NODE]..., at least 2 and 1\n", argv[0]);
    return 2;
  }
  std::printf("%7s %9s | %-33s | %-30s | %8s %8s\n", "", "", "messages of the busiest rank", "virtual us",
              "KiB", "s");
  std::printf("%7s %9s | %7s %10s %7s %5s | %9s %10s %9s | %8s %8s\n", "ranks", "per node", "barrier",
              "all-reduce", "failure", "peers", "barrier", "all-reduce", "failure", "a rank", "in all");
  for (const auto& [ranks, per_node] : jobs) weft::bench::Run(ranks, per_node);
  return 0;
}
