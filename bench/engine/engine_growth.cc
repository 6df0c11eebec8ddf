// Benchmark of the growth of the engine's costs with the number of ranks. All ranks are in one process, so
// that the process time is the time of all ranks. Elapsed time does not matter: there may be more ranks than
// cores.
//
//   weft_bench_engine_growth small_all_reduce RANKS   CPU time of an all-reduce of 43 i64 within a node
//   weft_bench_engine_growth broadcast NODES          largest bytes of a link, relative to the message
//   weft_bench_engine_growth reduce_scratch NODES     peak of scratch memory of a reduce-scatter
//   weft_bench_engine_growth core NODES               CPU time of a broadcast between nodes of one rank each
//   weft_bench_engine_growth operations NODES         CPU time of operations of one rank, parts of 64 bytes
//   weft_bench_engine_growth exchanges NODES          gathers and reduce-scatters, direct and relayed:
//                                                     messages that the busiest rank sends, virtual time, CPU
//                                                     time
//   weft_bench_engine_growth all_reduces NODES        the same of all-reduces
//
// `exchanges` and `all_reduces` simulate nodes of one rank each, on links of 10 Gbit/s, and wait for each
// operation. A message takes 20 us from node to node, without its bytes.
// Nodes are simulated; of `operations` and `reduce_scratch`, only node 0 runs (Note [Mirrored nodes] in
// weft/mesh/simulation.h). CPU times include the events of the simulator.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <absl/strings/str_cat.h>

#include "bench/or_die.h"
#include "src/comm/trees/relay_choice.h"
#include "tests/support/rank_engine.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

absl::Status Synchronize(Bootstrap& bootstrap) {
  return bootstrap.AllGatherBlob("", absl::Seconds(120)).status();
}

using Operation = std::function<Work(CommEngine&, LaneId, std::byte* memory)>;

struct Case {
  NodeHeap::Options heap;
  int64_t bytes;  // Of a rank's buffer.
  int warm_up, repeats;
  Relaying relaying = Relaying::kWhereItPays;
};

// Repeats an operation on one rank. Rank 0 sets `seconds` to the process time of the repeats.
absl::Status Repeat(Bootstrap& bootstrap, const Case& repeated, const Operation& operation, double& seconds) {
  EngineOptions options;
  options.relaying = repeated.relaying;
  WEFT_ASSIGN_OR_RETURN(testing::RankEngine rank,
                        testing::RankEngine::Make(bootstrap, options, repeated.heap));
  WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                        rank.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kOptimizer));
  WEFT_ASSIGN_OR_RETURN(const Buffer buffer, rank.pool->Acquire(static_cast<size_t>(repeated.bytes)));
  std::fill_n(buffer.data(), repeated.bytes, std::byte{1});
  const auto run = [&](int times) -> absl::Status {
    for (int i = 0; i < times; ++i)
      WEFT_RETURN_IF_ERROR(operation(*rank.engine, lane, buffer.data()).WaitReleased());
    return Synchronize(bootstrap);
  };
  WEFT_RETURN_IF_ERROR(run(repeated.warm_up));
  const double begin = CpuSeconds();
  WEFT_RETURN_IF_ERROR(run(repeated.repeats));
  if (bootstrap.rank() == 0) seconds = CpuSeconds() - begin;
  return absl::OkStatus();
}

void SmallAllReduce(int ranks) {
  constexpr int64_t kCount = 43;
  const Case repeated{{.segment_bytes = size_t{16} << 20}, kCount * 8, 50, 500};
  double seconds = 0;
  OrDie(RunThreadRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) {
    return Repeat(
        bootstrap, repeated,
        [](CommEngine& engine, LaneId lane, std::byte* memory) {
          return engine.AllReduce(lane, memory, memory, DType::kI64, kCount, ReduceOp::kMax);
        },
        seconds);
  }));
  std::printf("all-reduce of 43 i64, %d ranks of a node: %.1f us of CPU a rank\n", ranks,
              seconds * 1e6 / repeated.repeats / ranks);
}

void Core(int nodes) {
  constexpr int64_t kCount = 64;
  const Case repeated{{.segment_bytes = size_t{4} << 20}, kCount * 4, 2, 20};
  double seconds = 0;
  OrDie(RunSimulatedRanks(NodeMap::RanksPerNode(nodes, 1), {.jitter = 0}, [&](Bootstrap& bootstrap) {
          return Repeat(
              bootstrap, repeated,
              [](CommEngine& engine, LaneId lane, std::byte* memory) {
                return engine.Broadcast(lane, memory, DType::kF32, kCount, 0);
              },
              seconds);
        }).status());
  std::printf("broadcast of 64 f32, %d nodes of a rank each: %.0f ns of CPU a rank\n", nodes,
              seconds * 1e9 / repeated.repeats / nodes);
}

void Operations(int nodes) {
  constexpr int64_t kCount = 16;  // Elements of a part.
  const auto elements = static_cast<int64_t>(nodes) * kCount;
  struct Row {
    const char* name;
    Operation run;
    Relaying relaying = Relaying::kWhereItPays;
  };
  const auto all_reduce_of = [](int64_t bytes) {
    return [bytes](CommEngine& engine, LaneId lane, std::byte* memory) {
      return engine.AllReduce(lane, memory, memory, DType::kF32, bytes / 4, ReduceOp::kSum);
    };
  };
  const Row rows[] = {
      {"barrier", [](CommEngine& engine, LaneId lane, std::byte*) { return engine.Barrier(lane); }},
      {"all-reduce of 1 f32", all_reduce_of(4)},
      {"344 bytes, direct", all_reduce_of(344), Relaying::kNever},
      {"344 bytes, tree", all_reduce_of(344), Relaying::kAlways},
      {"4 KiB, direct", all_reduce_of(4096), Relaying::kNever},
      {"4 KiB, relayed", all_reduce_of(4096), Relaying::kAlways},
      {"all-gather",
       [&](CommEngine& engine, LaneId lane, std::byte* memory) {
         return engine.AllGather(lane, memory, memory, DType::kF32, elements);
       }},
      {"reduce-scatter",
       [&](CommEngine& engine, LaneId lane, std::byte* memory) {
         return engine.ReduceScatter(lane, memory, memory, DType::kF32, elements, ReduceOp::kSum);
       }},
  };
  const int64_t bytes = std::max<int64_t>(elements * 4, 4096);
  for (const Row& row : rows) {
    const Case repeated{{.segment_bytes = size_t{64} << 20}, bytes, 3, 20 + 20'000 / nodes, row.relaying};
    double seconds = 0;
    OrDie(
        RunSimulatedRanks(NodeMap::RanksPerNode(nodes, 1), {.jitter = 0, .mirror_nodes = true},
                          [&](Bootstrap& bootstrap) { return Repeat(bootstrap, repeated, row.run, seconds); })
            .status());
    std::printf("%-20s %5d nodes of a rank: %8.0f ns of CPU, %6.0f ns for each other node\n", row.name, nodes,
                seconds * 1e9 / repeated.repeats, seconds * 1e9 / repeated.repeats / (nodes - 1));
  }
}

struct ExchangeCost {
  int64_t messages = 0;  // Of the busiest rank.
  double virtual_us = 0;
  double cpu_us = 0;  // Of a rank.
};

// The cost of one of several exchanges of `whole` bytes in all.
ExchangeCost CostOf(int nodes, OpKind kind, size_t whole, Relaying relaying) {
  const int repeats = nodes > 64 ? 3 : 20;
  EngineOptions options;
  options.relaying = relaying;
  options.recorder_entries = 4;
  ExchangeCost cost;
  double begin = 0;
  int64_t begin_ns = 0;
  SimOptions machine;
  machine.jitter = 0;
  machine.wire_latency_ns = 20'000;
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(nodes, 1), machine, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(
            testing::RankEngine rank,
            testing::RankEngine::Make(bootstrap, options, {.segment_bytes = (size_t{4} << 20) + 24 * whole}));
        WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                              rank.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kOptimizer));
        WEFT_ASSIGN_OR_RETURN(const Buffer part, rank.pool->Acquire(whole));
        WEFT_ASSIGN_OR_RETURN(const Buffer buffer, rank.pool->Acquire(whole));
        std::fill_n(part.data(), whole, std::byte{1});
        std::fill_n(buffer.data(), whole, std::byte{1});
        const auto elements = static_cast<int64_t>(whole) / 4;
        const auto run = [&] {
          switch (kind) {
            case OpKind::kAllGather:
              return rank.engine->AllGather(lane, part.data(), buffer.data(), DType::kF32, elements);
            case OpKind::kReduceScatter:
              return rank.engine->ReduceScatter(lane, buffer.data(), part.data(), DType::kF32, elements,
                                                ReduceOp::kSum);
            default:
              return rank.engine->AllReduce(lane, buffer.data(), buffer.data(), DType::kF32, elements,
                                            ReduceOp::kSum);
          }
        };
        WEFT_RETURN_IF_ERROR(run().WaitReleased());
        WEFT_RETURN_IF_ERROR(Synchronize(bootstrap));
        if (bootstrap.rank() == 0) begin = CpuSeconds(), begin_ns = bootstrap.runtime().NowNs();
        const auto messages = [&] {
          return rank.engine->counters().control_messages + rank.engine->counters().wire_messages;
        };
        const int64_t before = messages();
        for (int i = 0; i < repeats; ++i) WEFT_RETURN_IF_ERROR(run().WaitReleased());
        cost.messages = std::max(cost.messages, (messages() - before) / repeats);
        WEFT_RETURN_IF_ERROR(Synchronize(bootstrap));
        if (bootstrap.rank() == 0) {
          cost.cpu_us = (CpuSeconds() - begin) * 1e6 / repeats / nodes;
          cost.virtual_us = static_cast<double>(bootstrap.runtime().NowNs() - begin_ns) * 1e-3 / repeats;
        }
        return absl::OkStatus();
      });
  OrDie(report.status());
  return cost;
}

void CompareForms(int nodes, OpKind kind, int64_t whole, const std::string& size) {
  struct Form {
    const char* name;
    Relaying relaying;
  };
  for (const Form& form : {Form{"direct", Relaying::kNever}, Form{"relayed", Relaying::kAlways}}) {
    const ExchangeCost cost = CostOf(nodes, kind, static_cast<size_t>(whole), form.relaying);
    std::printf("%-14s %4d nodes, %s, %-8s %5lld messages, %9.1f us, %8.1f us of CPU\n",
                std::string(Name(kind)).c_str(), nodes, size.c_str(), form.name,
                static_cast<long long>(cost.messages), cost.virtual_us, cost.cpu_us);
    std::fflush(stdout);
  }
}

void AllReduces(int nodes) {
  for (const int64_t bytes : {344, 4096, 65536})
    CompareForms(nodes, OpKind::kAllReduce, bytes, absl::StrCat(bytes, " bytes"));
}

void Exchanges(int nodes) {
  for (const OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter}) {
    for (const int64_t part_bytes : {4, 256, 1024, 4096, 65536}) {
      const int64_t whole = part_bytes * nodes;
      if (whole > 2 * kMaxRelayedBytes) continue;  // Both forms are direct.
      CompareForms(nodes, kind, whole, absl::StrCat("parts of ", part_bytes, " bytes"));
    }
  }
}

void Broadcast(int nodes) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  std::vector<int64_t> sent(static_cast<size_t>(nodes));
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(nodes, 1), {}, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(testing::RankEngine rank,
                              testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = size_t{16} << 20}));
        WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                              rank.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather));
        WEFT_ASSIGN_OR_RETURN(const Buffer buffer, rank.pool->Acquire(kBytes));
        Work work = rank.engine->Broadcast(lane, buffer.data(), DType::kU8, kBytes, 0);
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
        sent[static_cast<size_t>(bootstrap.rank())] = rank.engine->counters().wire_bytes;
        return absl::OkStatus();
      });
  OrDie(report.status());
  int64_t busiest = 0;
  for (size_t node = 0; node < sent.size(); ++node)
    busiest = std::max(busiest, sent[node] + (node == 0 ? 0 : kBytes));
  std::printf("broadcast of 1 MiB, %d nodes: %.2f x its size on the busiest link, %.2f ms (virtual)\n", nodes,
              static_cast<double>(busiest) / kBytes, static_cast<double>(report.virtual_ns) * 1e-6);
}

void ReduceScratch(int nodes) {
  constexpr int64_t kPart = int64_t{4} * 15 * 1024;  // Elements: four slices.
  size_t peak = 0;
  const SimReport report = RunSimulatedRanks(
      NodeMap::RanksPerNode(nodes, 1), {.jitter = 0, .mirror_nodes = true},
      [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(testing::RankEngine rank,
                              testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = size_t{2} << 30}));
        WEFT_ASSIGN_OR_RETURN(const LaneId lane,
                              rank.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kReduceScatter));
        const int64_t elements = kPart * bootstrap.size();
        WEFT_ASSIGN_OR_RETURN(const Buffer input, rank.pool->Acquire(static_cast<size_t>(elements) * 4));
        WEFT_ASSIGN_OR_RETURN(const Buffer output, rank.pool->Acquire(kPart * 4));
        Work work = rank.engine->ReduceScatter(lane, input.data(), output.data(), DType::kF32, elements,
                                               ReduceOp::kSum);
        WEFT_RETURN_IF_ERROR(work.WaitReleased());
        peak = rank.engine->scratch_peak_bytes();
        return absl::OkStatus();
      });
  OrDie(report.status());
  std::printf("reduce-scatter of parts of 240 KiB, %d nodes of a rank each: scratch peak %.2f MB, %.2f ms\n",
              nodes, static_cast<double>(peak) * 1e-6, static_cast<double>(report.virtual_ns) * 1e-6);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  const int count = argc == 3 ? std::atoi(argv[2]) : 0;
  if (count > 0 && what == "small_all_reduce") return weft::bench::SmallAllReduce(count), 0;
  if (count > 0 && what == "broadcast") return weft::bench::Broadcast(count), 0;
  if (count > 0 && what == "reduce_scratch") return weft::bench::ReduceScratch(count), 0;
  if (count > 0 && what == "core") return weft::bench::Core(count), 0;
  if (count > 1 && what == "exchanges") return weft::bench::Exchanges(count), 0;
  if (count > 1 && what == "all_reduces") return weft::bench::AllReduces(count), 0;
  if (count > 1 && what == "operations") return weft::bench::Operations(count), 0;
  std::fprintf(
      stderr,
      "usage: %s small_all_reduce|broadcast|reduce_scratch|core|operations|exchanges|all_reduces COUNT\n",
      argv[0]);
  return 2;
}
