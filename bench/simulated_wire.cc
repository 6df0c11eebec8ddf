// Benchmark of collectives between simulated nodes of one rank: the real engine, on virtual time.
//
//   weft_bench_simulated_wire [MIB] [NODES]
//
// Each row is a link. Each number is the share of the link's speed that a collective of MIB mebibytes
// reaches: the time that its bytes and two latencies take (of a credit and of the data; an all-reduce three),
// divided by the time from its submission to its end on all ranks. Copies and sums take no time.
//
//   waited      a thread waits
//   overlapped  all threads compute, so only the progress thread polls
//   constant    the same, with windows of constant size
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

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
    const int latencies = op == Op::kAllReduce ? 3 : 2;
    return static_cast<double>(wire_bytes()) * 8 / gigabits + static_cast<double>(latencies * latency_ns);
  }
};

absl::Status Exchange(Bootstrap& bootstrap, const Experiment& experiment, int64_t& elapsed_ns) {
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
  constexpr int kRounds = 4;  // The first ones find a rate that is not measured yet.
  for (int round = 0; round < kRounds; ++round) {
    WEFT_RETURN_IF_ERROR(engine.Barrier(lane, {}).WaitReleased());
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
    if (round == kRounds - 1) elapsed_ns = std::max(elapsed_ns, end - begin);
  }
  return absl::OkStatus();
}

double ShareOfWire(const Experiment& experiment) {
  SimOptions machine;
  machine.jitter = 0.05;
  machine.memory_speed = 1e6;
  machine.wire_latency_ns = experiment.latency_ns;
  machine.wire_speed = experiment.gigabits / 8;
  int64_t elapsed_ns = 0;
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(experiment.nodes, 1), machine,
                        [&](Bootstrap& bootstrap) { return Exchange(bootstrap, experiment, elapsed_ns); });
  OrDie(report.status());
  return experiment.shortest_ns() / static_cast<double>(elapsed_ns);
}

void Run(int64_t bytes, int nodes) {
  std::printf("%s of %lld MiB on %d nodes, share of the wire\n\n", "all-gather, reduce-scatter, all-reduce",
              static_cast<long long>(bytes >> 20), nodes);
  std::printf("%10s %10s |%18s |%18s |%18s\n", "Gbit/s", "latency us", "waited", "overlapped", "constant");
  for (const double gigabits : {1.0, 10.0, 25.0, 100.0, 400.0}) {
    for (const int64_t latency_us : {5, 50, 500, 5000}) {
      // The bytes in flight must be few beside those of the message.
      if (gigabits / 8 * 1e3 * static_cast<double>(latency_us) > static_cast<double>(bytes) / 4) continue;
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
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const int mebibytes = argc > 1 ? std::atoi(argv[1]) : 64;
  const int nodes = argc > 2 ? std::atoi(argv[2]) : 2;
  if (argc > 3 || mebibytes < 1 || nodes < 2) {
    std::fprintf(stderr, "usage: %s [MIB] [NODES], at least 1 and 2\n", argv[0]);
    return 2;
  }
  weft::bench::Run(int64_t{mebibytes} << 20, nodes);
  return 0;
}
