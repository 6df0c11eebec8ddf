// Benchmark of the engine's cost for a rank that computes and waits for nothing: with an idle engine, and
// with all-gathers that saturate the wire (or, on one node, the memory).
//
//   tests/multihost/multihost.sh -n 2 --ppn 1 --rate 1gbit build/release/bench/weft_bench_progress_cost
//
// Every round measures three windows, interleaved so that disturbances affect all of them: without an engine,
// with an idle engine, and with a busy engine. Printed for each are the rate of computation relative to the
// first window, and the share of a core that the other threads of the process use. The values are medians
// over rounds on rank 0, which needs a core for itself.
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "bench/or_die.h"
#include "bench/versus.h"
#include "weft/comm/comm_engine.h"
#include "weft/memory/pool_tensor.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

constexpr int kRounds = 9;
constexpr double kWindowSeconds = 0.3;
constexpr int64_t kGatheredElements = int64_t{2} << 20;  // Per operation: 8 MiB.
constexpr size_t kInFlight = 3;                          // Operations.

struct Window {
  std::vector<double> computed;       // Units per second.
  std::vector<double> other_threads;  // Cores that other threads used.
  std::vector<double> received;       // Bytes per second.
};

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One unit of computation: some tens of microseconds in the first-level cache.
void Compute(std::vector<float>& values) {
  for (int pass = 0; pass < 32; ++pass) {
    for (float& value : values) value = value * 0.5F + 1.0F;
  }
}

// Computes for kWindowSeconds; calls `between` after each unit.
template <typename Between>
void Measure(Window& window, const Between& between) {
  std::vector<float> values(4096, 1.0F);
  const double cpu = CpuSeconds(RUSAGE_SELF) - CpuSeconds(RUSAGE_THREAD);
  int64_t units = 0;
  const double seconds = SecondsOf([&] {
    double elapsed = 0;
    while (elapsed < kWindowSeconds) {
      elapsed += SecondsOf([&] {
        Compute(values);
        between();
      });
      ++units;
    }
  });
  window.computed.push_back(static_cast<double>(units) / seconds);
  window.other_threads.push_back((CpuSeconds(RUSAGE_SELF) - CpuSeconds(RUSAGE_THREAD) - cpu) / seconds);
}

class ProgressCostBenchmark {
 public:
  ProgressCostBenchmark() : input_(Floats(kGatheredElements / bootstrap_->size())) {
    for (size_t i = 0; i < kInFlight; ++i) outputs_.push_back(Floats(kGatheredElements));
  }

  void Round() {
    Barrier();
    Measure(alone_, [] {});
    auto engine = OrDie(CommEngine::Create(*bootstrap_, *heap_));
    const LaneId lane = OrDie(engine->AddLane(WorldGroup(*bootstrap_), LanePurpose::kAllGather));
    OrDie(engine->Barrier(lane).WaitReleased());
    Measure(idle_, [] {});
    Barrier();
    MeasureBusy(*engine, lane);
  }

  void Print() const {
    if (bootstrap_->rank() != 0) return;
    const double alone = Median(alone_.computed);
    const auto print = [&](const char* name, const Window& window) {
      std::printf("%-22s computes %5.3f of alone, other threads take %5.3f of a core", name,
                  Median(window.computed) / alone, Median(window.other_threads));
      if (!window.received.empty()) std::printf(", receives %.0f MB/s", Median(window.received) * 1e-6);
      std::printf("\n");
    };
    print("without an engine", alone_);
    print("nothing in flight", idle_);
    print("all-gathers in flight", busy_);
  }

 private:
  Tensor Floats(int64_t count) { return OrDie(PoolTensor(*pool_, DType::kF32, {count})); }
  void Barrier() { OrDie(bootstrap_->AllGatherBlob("", absl::Minutes(1)).status()); }

  // Submits an operation whenever one ends. All ranks must submit the same number, so every rank fills up to
  // the maximum at the end.
  void MeasureBusy(CommEngine& engine, LaneId lane) {
    std::deque<Work> works;
    int64_t submitted = 0;
    int64_t ended = 0;
    const auto submit = [&] {
      void* output = outputs_[static_cast<size_t>(submitted++) % kInFlight].view().data;
      works.push_back(engine.AllGather(lane, input_.view().data, output, DType::kF32, kGatheredElements));
    };
    for (size_t i = 0; i < kInFlight; ++i) submit();
    const double seconds = SecondsOf([&] {
      Measure(busy_, [&] {
        while (works.front().TestReleased()) {
          works.pop_front();
          ++ended;
          submit();
        }
      });
    });
    const int64_t part_bytes = kGatheredElements / bootstrap_->size() * 4;
    busy_.received.push_back(static_cast<double>(ended * part_bytes * (bootstrap_->size() - 1)) / seconds);
    for (const int64_t target = MaxOverRanks(submitted); submitted < target;) submit();
    for (Work& work : works) OrDie(work.WaitReleased());
  }

  int64_t MaxOverRanks(int64_t own) {
    const auto blobs = OrDie(bootstrap_->AllGatherBlob(std::to_string(own), absl::Minutes(1)));
    for (const std::string& blob : blobs) own = std::max<int64_t>(own, std::stoll(blob));
    return own;
  }

  std::unique_ptr<Bootstrap> bootstrap_ = OrDie(MakeMpiBootstrap());
  std::unique_ptr<NodeHeap> heap_ =
      OrDie(NodeHeap::Create(*bootstrap_, {.segment_bytes = size_t{128} << 20}));
  std::unique_ptr<BufferPool> pool_ = std::make_unique<BufferPool>(*heap_, "benchmark");
  Tensor input_;
  std::vector<Tensor> outputs_;
  Window alone_, idle_, busy_;
};

}  // namespace
}  // namespace weft::bench

int main() {
  weft::bench::ProgressCostBenchmark measurement;
  for (int round = 0; round < weft::bench::kRounds; ++round) measurement.Round();
  measurement.Print();
  return 0;
}
