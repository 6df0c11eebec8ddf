// Benchmark of priorities on a shared wire: the latency of an attention exchange with nothing else in flight,
// beside reduce-scatters and all-gathers that saturate the wire, and behind them in a first-in, first-out
// queue.
//
//   tests/multihost/multihost.sh -n 2 --ppn 1 --rate 1gbit build/release/bench/weft_bench_shared_scheduler
//
// Every round measures all three, interleaved so that disturbances affect all of them. A latency is the time
// from submission to *ready* on the slowest rank. Printed are medians and 90th percentiles over rounds.
// Exchanges count only if the background is still in flight when they end.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bench/mpi_baseline.h"
#include "bench/or_die.h"
#include "bench/versus.h"
#include "tests/support/rank_engine.h"
#include "weft/comm/comm_engine.h"
#include "weft/memory/pool_tensor.h"
#include "weft/mesh/mpi_bootstrap.h"

namespace weft::bench {
namespace {

constexpr int64_t kMiB = 1024 * 1024;
constexpr int64_t kExchangeBytes = 1 * kMiB;    // Bytes that each rank sends to all peers together.
constexpr int64_t kOperationBytes = 16 * kMiB;  // Size of a whole parameter group.
constexpr int kOperations = 16;                 // Half are reduce-scatters; 256 MiB in flight.
constexpr int kExchangesPerRound = 8;
constexpr int kRounds = 5;

class SharedWireBenchmark {
 public:
  SharedWireBenchmark() {
    ProcessGroup world{.name = "world", .ranks = {}, .group_rank = bootstrap_->rank()};
    for (int rank = 0; rank < bootstrap_->size(); ++rank) world.ranks.push_back(rank);
    const auto lane = [&](LanePurpose purpose) { return OrDie(rank_.engine->AddLane(world, purpose)); };
    gathers_ = lane(LanePurpose::kAllGather);
    scatters_ = lane(LanePurpose::kReduceScatter);
    exchanges_ = lane(LanePurpose::kContext);
    barriers_ = lane(LanePurpose::kControl);
    const int64_t elements = kOperationBytes / 4;
    const int64_t part = elements / world.size();
    shard_ = Floats(part);
    weights_ = Floats(elements);
    gradients_ = Floats(elements);
    reduced_ = Floats(part);
    const int64_t exchanged = kExchangeBytes / 4 / std::max(1, world.size() - 1);
    sent_ = Floats(exchanged * world.size());
    received_ = Floats(exchanged * world.size());
    counts_.assign(static_cast<size_t>(world.size()), exchanged);
    counts_[static_cast<size_t>(world.group_rank)] = 0;
  }

  // Latencies in ms of exchanges with nothing else in flight.
  std::vector<double> LatenciesAlone() {
    std::vector<double> times;
    for (int i = 0; i < kExchangesPerRound; ++i) times.push_back(OneExchange(exchanges_));
    return times;
  }

  // Latencies in ms beside the background, each on its own lane.
  std::vector<double> LatenciesBesideBackground() {
    std::deque<Work> background = SubmitBackground(scatters_, gathers_);
    OrDie(background.front().Wait());
    std::vector<double> times;
    for (int i = 0; i < kExchangesPerRound; ++i) {
      const double time = OneExchange(exchanges_);
      if (mpi_.TrueEverywhere(!background.back().Test())) times.push_back(time);
    }
    for (Work& work : background) OrDie(work.WaitReleased());
    return times;
  }

  // Seconds of the background alone; no thread waits on it.
  double SecondsOfBackground() {
    Barrier();
    return SecondsOf([&] {
      std::deque<Work> background = SubmitBackground(scatters_, gathers_);
      while (!background.back().Test() || !background[background.size() - 2].Test()) {
        bootstrap_->runtime().SleepFor(1'000'000);
      }
    });
  }

  // Latency in ms of one exchange behind the background, on the same lane.
  std::vector<double> LatenciesBehindBackground() {
    std::deque<Work> background = SubmitBackground(scatters_, scatters_);
    OrDie(background.front().Wait());
    const double time = OneExchange(scatters_);
    for (Work& work : background) OrDie(work.WaitReleased());
    return {time};
  }

  bool is_first() const { return bootstrap_->rank() == 0; }
  void Barrier() { mpi_.Barrier(); }

 private:
  Tensor Floats(int64_t elements) {
    Tensor tensor = OrDie(PoolTensor(*rank_.pool, DType::kF32, {elements}));
    std::fill_n(tensor.As<float>(), elements, 1.0F);
    return tensor;
  }

  static OpOptions WithPriority(Priority priority) {
    OpOptions options;
    options.priority = priority;
    return options;
  }

  double OneExchange(LaneId lane) {
    OrDie(rank_.engine->Barrier(barriers_, WithPriority(Priority::kCritical)).Wait());
    const double seconds = SecondsOf([&] {
      Work work = rank_.engine->AllToAll(lane, sent_.As<float>(), counts_, received_.As<float>(), counts_,
                                         DType::kF32, WithPriority(Priority::kCritical));
      OrDie(work.Wait());
    });
    return mpi_.Slowest(seconds) * 1e3;
  }

  std::deque<Work> SubmitBackground(LaneId scatters, LaneId gathers) {
    std::deque<Work> works;
    for (int i = 0; i < kOperations / 2; ++i) {
      works.push_back(rank_.engine->ReduceScatter(scatters, gradients_.As<float>(), reduced_.As<float>(),
                                                  DType::kF32, gradients_.elements(), ReduceOp::kSum, {},
                                                  WithPriority(Priority::kReduce)));
      works.push_back(rank_.engine->AllGather(gathers, shard_.As<float>(), weights_.As<float>(), DType::kF32,
                                              weights_.elements(), {}, WithPriority(Priority::kPrefetch)));
    }
    return works;
  }

  std::unique_ptr<Bootstrap> bootstrap_ = OrDie(MakeMpiBootstrap());
  testing::RankEngine rank_ =
      OrDie(testing::RankEngine::Make(*bootstrap_, {}, {.segment_bytes = 128 * kMiB}));
  Tensor shard_, weights_, gradients_, reduced_, sent_, received_;
  std::vector<int64_t> counts_;  // Elements sent to each rank, and received from it.
  MpiBaseline mpi_;
  LaneId gathers_, scatters_, exchanges_, barriers_;
};

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void Add(std::vector<double>& all, const std::vector<double>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

int Main() {
  SharedWireBenchmark measurement;
  measurement.LatenciesAlone();  // Warm-up: touches memory and opens connections.
  std::vector<double> alone, beside, behind, background;
  for (int round = 0; round < kRounds; ++round) {
    Add(alone, measurement.LatenciesAlone());
    Add(beside, measurement.LatenciesBesideBackground());
    Add(behind, measurement.LatenciesBehindBackground());
    Add(background, {measurement.SecondsOfBackground() * 1e3});
  }
  if (beside.empty()) {
    std::fprintf(
        stderr,
        "benchmark: the background ended before every exchange; expected a slower wire, such as that of "
        "multihost.sh --rate 1gbit\n");
    return 1;
  }
  if (!measurement.is_first()) return 0;
  std::printf("A 1 MiB exchange, 256 MiB of reduce-scatters and all-gathers (ms, slowest rank)\n\n");
  std::printf("%-26s %8s %8s %6s\n", "", "median", "90%", "of");
  const auto line = [](const char* name, const std::vector<double>& times) {
    std::printf("%-26s %8.2f %8.2f %6zu\n", name, Median(times), Percentile(times, 0.9), times.size());
  };
  line("alone", alone);
  line("beside the background", beside);
  line("first in, first out", behind);
  line("background alone", background);
  std::printf("\nbeside / alone %.2f   first in, first out / beside %.1f\n", Median(beside) / Median(alone),
              Median(behind) / Median(beside));
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main() { return weft::bench::Main(); }
