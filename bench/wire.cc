// Benchmark of the link over TCP sockets against the one over MPI: the same collectives on two engines of the
// same processes.
//
//   tests/multihost/multihost.sh --rate 1gbit build/release/bench/weft_bench_wire
//
// One engine has the bootstrap over MPI, the other the one over a store, a folder that all hosts reach. Each
// round runs each collective of 64 MiB once on both, in alternating order, so that disturbances affect both.
// The time is that of the slowest rank. Printed are the medians, the time of the bytes that a host sends at
// `--rate` of the cable without any overhead (if given as the only argument, in Gbit/s), and the ratio of the
// two times.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/or_die.h"
#include "bench/versus.h"
#include "tests/support/rank_engine.h"
#include "weft/comm/comm_engine.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/store_bootstrap.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

constexpr int kRounds = 11;
constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB of f32.

std::vector<std::string> Gather(Bootstrap& bootstrap, const std::string& text) {
  return OrDie(bootstrap.AllGatherBlob(text, absl::Minutes(2)));
}

std::unique_ptr<Bootstrap> OverStore(Bootstrap& mpi, const std::string& folder) {
  StoreBootstrapOptions options;
  options.rank = mpi.rank();
  options.size = mpi.size();
  return OrDie(MakeStoreBootstrap(OrDie(OpenFileStore(folder)), options));
}

// A folder that rank 0 names.
std::string SharedFolder(Bootstrap& mpi) {
  std::string pattern = std::filesystem::temp_directory_path() / "weft-wire-XXXXXX";
  if (mpi.rank() == 0 && mkdtemp(pattern.data()) == nullptr)
    OrDie(absl::InternalError("no temporary folder"));
  return Gather(mpi, pattern)[0];
}

// An engine with the buffers of all collectives.
class Contestant {
 public:
  explicit Contestant(Bootstrap& bootstrap)
      : rank_(OrDie(testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = size_t{256} << 20}))),
        lane_(OrDie(rank_.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather))),
        whole_(OrDie(rank_.pool->Acquire(kElements * sizeof(float)))),
        part_(OrDie(rank_.pool->Acquire(kElements / bootstrap.size() * sizeof(float)))) {}

  void AllGather() {
    End(rank_.engine->AllGather(lane_, part_.data(), whole_.data(), DType::kF32, kElements));
  }
  void ReduceScatter() {
    End(rank_.engine->ReduceScatter(lane_, whole_.data(), part_.data(), DType::kF32, kElements,
                                    ReduceOp::kSum));
  }
  void AllReduce() {
    End(rank_.engine->AllReduce(lane_, whole_.data(), whole_.data(), DType::kF32, kElements, ReduceOp::kSum));
  }

 private:
  static void End(Work work) { OrDie(work.WaitReleased()); }
  testing::RankEngine rank_;
  LaneId lane_;
  Buffer whole_;
  Buffer part_;
};

struct Times {
  std::vector<double> mpi;
  std::vector<double> store;
  std::vector<double> ratios;
};

double Slowest(Bootstrap& bootstrap, double seconds) {
  double slowest = 0;
  for (const std::string& text : Gather(bootstrap, std::to_string(seconds)))
    slowest = std::max(slowest, std::stod(text));
  return slowest;
}

double Measure(Bootstrap& bootstrap, Contestant& contestant, void (Contestant::*run)()) {
  Gather(bootstrap, "");
  return Slowest(bootstrap, SecondsOf([&] { (contestant.*run)(); }));
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft;
  using namespace weft::bench;
  const double gigabits = argc > 1 ? std::atof(argv[1]) : 0;
  const auto mpi = OrDie(MakeMpiBootstrap());
  const std::string folder = SharedFolder(*mpi);
  const auto store = OverStore(*mpi, folder);
  Contestant over_mpi(*mpi);
  Contestant over_store(*store);
  struct Row {
    const char* name;
    void (Contestant::*run)();
    double sent;  // Bytes that a host of two sends, as a part of 64 MiB.
  };
  for (const Row& row : {Row{"all-gather", &Contestant::AllGather, 0.5},
                         Row{"reduce-scatter", &Contestant::ReduceScatter, 0.5},
                         Row{"all-reduce", &Contestant::AllReduce, 1.0}}) {
    Times times;
    for (int round = -1; round < kRounds; ++round) {  // The first is a warm-up.
      double seconds[2];
      for (const int i : {round & 1, 1 - (round & 1)})
        seconds[i] = Measure(*mpi, i == 0 ? over_mpi : over_store, row.run);
      if (round < 0) continue;
      times.mpi.push_back(seconds[0]);
      times.store.push_back(seconds[1]);
      times.ratios.push_back(seconds[1] / seconds[0]);
    }
    if (mpi->rank() != 0) continue;
    std::sort(times.ratios.begin(), times.ratios.end());
    std::printf("%-15s MPI %7.1f ms, sockets %7.1f ms, sockets / MPI %.3f (quartiles %.3f to %.3f)", row.name,
                Median(times.mpi) * 1e3, Median(times.store) * 1e3, Median(times.store) / Median(times.mpi),
                times.ratios[kRounds / 4], times.ratios[kRounds - 1 - kRounds / 4]);
    if (gigabits > 0) std::printf(", cable %.1f ms", row.sent * kElements * 32 / gigabits * 1e-6);
    std::printf("\n");
  }
  Gather(*mpi, "");
  if (mpi->rank() == 0) std::filesystem::remove_all(folder);
  return 0;
}
