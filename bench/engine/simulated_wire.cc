// Benchmark of collectives between simulated nodes of one rank: the real engine, on virtual time.
//
//   weft_bench_simulated_wire [MIB] [NODES] [GBIT LATENCY_US]
//
// Each row is a link, by default each of a grid of rates and latencies. Each number is the share of the
// link's speed that a collective of MIB mebibytes reaches: the time that its bytes and two latencies take
// (of a credit and of the data), divided by the time from its submission, at the same time on all ranks,
// to its end on all. Copies and sums take no time.
//
//   waited      a thread waits
//   overlapped  all threads compute, so only the progress thread polls
//   constant    the same, with windows of constant size
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/or_die.h"
#include "tests/support/rank_engine.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

enum class Op : uint8_t { kAllGather, kReduceScatter, kAllReduce };
enum class Mode : uint8_t { kWaited, kOverlapped, kConstant };

struct Experiment {
  Op op = Op::kAllGather;
  Mode mode = Mode::kWaited;
  double gigabits = 0;
  int64_t latency_ns = 0;
  int64_t bytes = 0;
  int nodes = 0;

  // On each link and in each direction.
  int64_t wire_bytes() const { return bytes / nodes * (nodes - 1) * (op == Op::kAllReduce ? 2 : 1); }
  double shortest_ns() const {
    return static_cast<double>(wire_bytes()) * 8 / gigabits + static_cast<double>(2 * latency_ns);
  }
};

// Values that all ranks of a simulation set and read. They take turns in one thread.
struct Shared {
  int round = -1;
  int64_t begin_ns = 0;  // Of this round.
  int64_t elapsed_ns = 0;
};

// Waits until all ranks have left a barrier, and returns at the same time on all.
void BeginTogether(Runtime& runtime, const Experiment& experiment, int round, Shared& shared) {
  constexpr int64_t kMillisecond = 1'000'000;
  if (std::exchange(shared.round, round) != round)
    shared.begin_ns = runtime.NowNs() + 4 * experiment.latency_ns + kMillisecond;
  while (runtime.NowNs() < shared.begin_ns)
    runtime.SleepFor(std::max<int64_t>(100, (shared.begin_ns - runtime.NowNs()) / 2));
}

absl::Status Exchange(Bootstrap& bootstrap, const Experiment& experiment, Shared& shared) {
  constexpr int64_t kSlack = 1 << 20;
  EngineOptions options;
  if (experiment.mode == Mode::kConstant) options.max_budget_bytes = 1;
  WEFT_ASSIGN_OR_RETURN(
      const testing::RankEngine rank,
      testing::RankEngine::Make(bootstrap, options,
                                {.segment_bytes = static_cast<size_t>(2 * experiment.bytes + 64 * kSlack)}));
  CommEngine& engine = *rank.engine;
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.SharedLane(WorldGroup(bootstrap), LanePurpose::kAllGather));
  const int64_t elements = experiment.bytes / static_cast<int64_t>(sizeof(float));
  BufferPool pool(*rank.heap, "benchmark");
  WEFT_ASSIGN_OR_RETURN(Buffer whole, pool.Acquire(static_cast<size_t>(experiment.bytes)));
  WEFT_ASSIGN_OR_RETURN(Buffer part, pool.Acquire(static_cast<size_t>(experiment.bytes)));
  constexpr int kRounds = 8;  // The first ones find a rate that is not measured yet.
  for (int round = 0; round < kRounds; ++round) {
    WEFT_RETURN_IF_ERROR(engine.Barrier(lane, {}).WaitReleased());
    BeginTogether(bootstrap.runtime(), experiment, round, shared);
    const int64_t begin = bootstrap.runtime().NowNs();
    Work work;
    if (experiment.op == Op::kAllGather) {
      work = engine.AllGather(lane, part.data(), whole.data(), DType::kF32, elements, {}, {});
    } else if (experiment.op == Op::kReduceScatter) {
      work = engine.ReduceScatter(lane, whole.data(), part.data(), DType::kF32, elements, ReduceOp::kSum, {},
                                  {});
    } else {
      work = engine.AllReduce(lane, whole.data(), whole.data(), DType::kF32, elements, ReduceOp::kSum, {});
    }
    if (experiment.mode != Mode::kWaited) {
      while (!work.TestReleased()) bootstrap.runtime().SleepFor(5'000);
    }
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    const int64_t end = bootstrap.runtime().NowNs();
    if (round == kRounds - 1) shared.elapsed_ns = std::max(shared.elapsed_ns, end - begin);
  }
  return absl::OkStatus();
}

double ShareOfWire(const Experiment& experiment) {
  SimOptions machine;
  machine.jitter = 0.05;
  machine.memory_speed = 1e6;
  machine.wire_latency_ns = experiment.latency_ns;
  machine.wire_speed = experiment.gigabits / 8;
  Shared shared;
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(experiment.nodes, 1), machine,
                        [&](Bootstrap& bootstrap) { return Exchange(bootstrap, experiment, shared); });
  OrDie(report.status());
  return experiment.shortest_ns() / static_cast<double>(shared.elapsed_ns);
}

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

void Run(int64_t bytes, int nodes, const std::vector<Link>& links) {
  std::printf("%s of %lld MiB on %d nodes, share of the wire\n\n", "all-gather, reduce-scatter, all-reduce",
              static_cast<long long>(bytes >> 20), nodes);
  std::printf("%10s %10s |%18s |%18s |%18s\n", "Gbit/s", "latency us", "waited", "overlapped", "constant");
  for (const auto& [gigabits, latency_us] : links) {
    std::printf("%10.0f %10lld |", gigabits, static_cast<long long>(latency_us));
    for (const Mode mode : {Mode::kWaited, Mode::kOverlapped, Mode::kConstant}) {
      for (const Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllReduce}) {
        std::printf(" %5.2f", ShareOfWire({op, mode, gigabits, latency_us * 1000, bytes, nodes}));
      }
      std::printf(mode == Mode::kConstant ? "\n" : " |");
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const int mebibytes = argc > 1 ? std::atoi(argv[1]) : 64;
  const int nodes = argc > 2 ? std::atoi(argv[2]) : 2;
  const double gigabits = argc > 3 ? std::atof(argv[3]) : 1;
  const int latency_us = argc > 4 ? std::atoi(argv[4]) : 1;
  if (argc == 4 || argc > 5 || mebibytes < 1 || nodes < 2 || gigabits <= 0 || latency_us < 1) {
    std::fprintf(stderr, "usage: %s [MIB] [NODES] [GBIT LATENCY_US], at least 1 and 2\n", argv[0]);
    return 2;
  }
  const int64_t bytes = int64_t{mebibytes} << 20;
  const auto links =
      argc > 4 ? std::vector<weft::bench::Link>{{gigabits, latency_us}} : weft::bench::Grid(bytes);
  weft::bench::Run(bytes, nodes, links);
  return 0;
}
