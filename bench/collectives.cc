// weft's collectives against Open MPI's, on the same ranks in the same run.
//
//   tools/mpirun.sh -n 4 build/release/bench/weft_bench_collectives [--benchmark_filter=…
//   --benchmark_out=FILE.json]
//
// Every repeat runs weft's collective, MPI's blocking one and MPI's nonblocking one in turn, so that all
// three meet the same weather. A repeat's time is the slowest rank's; what is reported is the median of
// repeats. weft's time runs to *released*: as after an MPI call, the input may be written again.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/mpi_baseline.h"
#include "bench/or_die.h"
#include "bench/ratio_reporter.h"
#include "weft/comm/comm_engine.h"
#include "weft/core/status.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/mpi_bootstrap.h"

namespace weft::bench {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

// Everything that lives as long as the program.
struct Arena {
  std::unique_ptr<Bootstrap> bootstrap = OrDie(MakeMpiBootstrap());
  std::unique_ptr<NodeHeap> heap = OrDie(NodeHeap::Create(*bootstrap, {.segment_bytes = 256 * kMiB}));
  std::unique_ptr<CommEngine> engine = OrDie(CommEngine::Create(*bootstrap, *heap));
  MpiBaseline mpi;
  std::array<LaneId, 3> lanes = {AddLane(LanePurpose::kAllGather), AddLane(LanePurpose::kReduceScatter),
                                 AddLane(LanePurpose::kAllReduce)};

  LaneId AddLane(LanePurpose purpose) {
    ProcessGroup world{.name = "world", .ranks = {}, .group_rank = bootstrap->rank()};
    for (int rank = 0; rank < bootstrap->size(); ++rank) world.ranks.push_back(rank);
    return OrDie(engine->AddLane(world, purpose));
  }
};

// Buffers of one collective at one size: weft's in node memory, MPI's in ordinary memory, with the same
// contents: small integers, whose sums are exact in any order.
class Buffers {
 public:
  Buffers(Arena& arena, int64_t input_count, int64_t output_count)
      : heap_(*arena.heap),
        weft_input_(Allocate(input_count)),
        weft_output_(Allocate(output_count)),
        mpi_input_(input_count),
        mpi_output_(output_count) {
    for (int64_t i = 0; i < input_count; ++i)
      mpi_input_[i] = static_cast<float>((i + arena.bootstrap->rank()) % 64);
    std::copy(mpi_input_.begin(), mpi_input_.end(), weft_input_);
  }
  ~Buffers() {
    heap_.Free(reinterpret_cast<std::byte*>(weft_input_));
    heap_.Free(reinterpret_cast<std::byte*>(weft_output_));
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  float* weft_input() { return weft_input_; }
  float* weft_output() { return weft_output_; }
  float* mpi_input() { return mpi_input_.data(); }
  float* mpi_output() { return mpi_output_.data(); }
  bool OutputsAgree() const { return std::equal(mpi_output_.begin(), mpi_output_.end(), weft_output_); }

 private:
  float* Allocate(int64_t count) {
    return reinterpret_cast<float*>(OrDie(heap_.Allocate(count * sizeof(float))));
  }

  NodeHeap& heap_;
  float* weft_input_;
  float* weft_output_;
  std::vector<float> mpi_input_;
  std::vector<float> mpi_output_;
};

using Style = MpiBaseline::Style;

// The three ways to run a collective once, from call to the end of its use of the input.
struct Contest {
  std::function<void()> weft;
  std::function<void(Style)> mpi;
};

void Finish(Work work) { OrDie(work.WaitReleased()); }

Contest MakeContest(Arena& arena, OpKind kind, Buffers& buffers, int64_t total) {
  const int64_t part = total / arena.bootstrap->size();
  switch (kind) {
    case OpKind::kAllGather:
      return {[&arena, &buffers, total] {
                Finish(arena.engine->AllGather(arena.lanes[0], buffers.weft_input(), buffers.weft_output(),
                                               DType::kF32, total));
              },
              [&arena, &buffers, part](Style style) {
                arena.mpi.AllGather(style, buffers.mpi_input(), buffers.mpi_output(), part);
              }};
    case OpKind::kReduceScatter:
      return {
          [&arena, &buffers, total] {
            Finish(arena.engine->ReduceScatter(arena.lanes[1], buffers.weft_input(), buffers.weft_output(),
                                               DType::kF32, total, ReduceOp::kSum));
          },
          [&arena, &buffers, part](Style style) {
            arena.mpi.ReduceScatter(style, buffers.mpi_input(), buffers.mpi_output(), part);
          }};
    default:
      return {[&arena, &buffers, total] {
                Finish(arena.engine->AllReduce(arena.lanes[2], buffers.weft_input(), buffers.weft_output(),
                                               DType::kF32, total, ReduceOp::kSum));
              },
              [&arena, &buffers, total](Style style) {
                arena.mpi.AllReduce(style, buffers.mpi_input(), buffers.mpi_output(), total);
              }};
  }
}

double SecondsOfSlowest(MpiBaseline& mpi, const std::function<void()>& run) {
  mpi.Barrier();
  const auto start = std::chrono::steady_clock::now();
  run();
  return mpi.Slowest(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

double MedianMicroseconds(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2] * 1e6;
}

void RunContest(benchmark::State& state, Arena& arena, OpKind kind, int64_t bytes) {
  const int64_t ranks = arena.bootstrap->size();
  const int64_t total = bytes / static_cast<int64_t>(sizeof(float)) / ranks * ranks;
  const int64_t part = total / ranks;
  Buffers buffers(arena, kind == OpKind::kAllGather ? part : total,
                  kind == OpKind::kReduceScatter ? part : total);
  const Contest contest = MakeContest(arena, kind, buffers, total);
  const auto blocking = [&] { contest.mpi(Style::kBlocking); };
  const auto nonblocking = [&] { contest.mpi(Style::kNonblocking); };

  nonblocking();
  blocking();
  contest.weft();
  if (!arena.mpi.TrueEverywhere(buffers.OutputsAgree())) {
    state.SkipWithError("weft's result is not MPI's");
    return;
  }
  std::vector<double> weft_times, blocking_times, nonblocking_times;
  for (auto _ : state) {
    weft_times.push_back(SecondsOfSlowest(arena.mpi, contest.weft));
    blocking_times.push_back(SecondsOfSlowest(arena.mpi, blocking));
    nonblocking_times.push_back(SecondsOfSlowest(arena.mpi, nonblocking));
    state.SetIterationTime(weft_times.back());
  }
  state.counters[kWeftCounter] = MedianMicroseconds(weft_times);
  state.counters[kBlockingCounter] = MedianMicroseconds(blocking_times);
  state.counters[kNonblockingCounter] = MedianMicroseconds(nonblocking_times);
}

struct Size {
  const char* name;
  int64_t bytes;  // Of the whole: the gathered buffer, the unreduced one.
  int repeats;
};

void RegisterContests(Arena& arena) {
  const std::array<std::pair<const char*, OpKind>, 3> kinds = {{{"AllGather", OpKind::kAllGather},
                                                                {"ReduceScatter", OpKind::kReduceScatter},
                                                                {"AllReduce", OpKind::kAllReduce}}};
  const std::array<Size, 4> sizes = {
      {{"4KiB", 4 * kKiB, 501}, {"1MiB", kMiB, 101}, {"16MiB", 16 * kMiB, 31}, {"64MiB", 64 * kMiB, 15}}};
  for (const auto& [kind_name, kind] : kinds) {
    for (const Size& size : sizes) {
      const auto run = [&arena, kind = kind, bytes = size.bytes](benchmark::State& state) {
        RunContest(state, arena, kind, bytes);
      };
      // A fixed number of iterations: all ranks must do the same.
      benchmark::RegisterBenchmark((std::string(kind_name) + "/" + size.name).c_str(), run)
          ->Iterations(size.repeats)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

// Open MPI's reductions allocate a temporary as large as the data in every call. Kept by malloc, as here, it
// costs nothing; given back to the system, as is the default, each call would pay for fresh pages, which
// flatters weft.
void KeepFreedMemory() {
  constexpr int kLargest = 2147483647;
  if (mallopt(M_MMAP_THRESHOLD, kLargest) != 1 || mallopt(M_TRIM_THRESHOLD, kLargest) != 1) {
    OrDie(absl::InternalError("malloc cannot be told to keep freed memory; the comparison would be unfair"));
  }
}

// Only rank 0 may write the file of --benchmark_out.
std::vector<char*> ArgumentsOfRank(int rank, int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  if (rank != 0) {
    std::erase_if(arguments,
                  [](const char* argument) { return std::strncmp(argument, "--benchmark_out", 15) == 0; });
  }
  return arguments;
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  Arena arena;
  const int rank = arena.bootstrap->rank();
  std::vector<char*> arguments = ArgumentsOfRank(rank, argc, argv);
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  benchmark::AddCustomContext("ranks", std::to_string(arena.bootstrap->size()));
  benchmark::AddCustomContext("nodes", std::to_string(arena.bootstrap->node_map().node_count()));

  RegisterContests(arena);
  RatioReporter loud;
  RunOnAllRanks(rank == 0, loud);
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::Main(argc, argv); }
