// Benchmark of the links between nodes: collectives on engines over MPI and over TCP sockets, beside a stream
// of plain MPI messages with as many bytes and beside Open MPI's own collectives, all in the same processes.
//
//   tests/multihost/multihost.sh --rate 10gbit build/release/bench/weft_bench_wire --gigabits 10
//   tools/mpirun.sh -n 4 build/release/bench/weft_bench_wire --apart
//   tools/mpirun.sh -n 2 build/release/bench/weft_bench_wire --apart --slices 256,1024 --runs 60
//
// With --apart every process counts as a node, so that all bytes cross MPI's transport within a host. Each
// round runs each contestant once, and every round starts with another one. A time runs from a barrier to the
// end of the slowest rank; for weft that is *released*. CPU time is that of all ranks and all their threads.
// Printed for each collective and contestant: the median time with its quartiles, the stream's time divided
// by it (the median of the rounds' ratios, with quartiles), the CPU time for each gigabyte that crosses
// between nodes, and that divided by the stream's. With --gigabits the first line of a collective has the
// time of the bytes that a host sends at that rate without any overhead.
//
// The stream moves only what crosses. `MPI stream with work` also does what a collective must do besides, on
// each message as it arrives: a gather copies the rank's own part, a sum adds. --in-place adds an engine
// whose input of a gather lies in the output, so that it copies no part.
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "bench/engine/wire_options.h"
#include "bench/mpi_baseline.h"
#include "bench/or_die.h"
#include "bench/versus.h"
#include "tests/support/rank_engine.h"
#include "weft/comm/comm_engine.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

enum class Op : uint8_t { kAllGather, kReduceScatter, kAllReduce };
constexpr std::array<const char*, 3> kOpNames = {"all-gather", "reduce-scatter", "all-reduce"};

std::vector<std::string> Gather(Bootstrap& bootstrap, const std::string& text) {
  return OrDie(bootstrap.AllGatherBlob(text, absl::Minutes(2)));
}

// The values of all ranks.
std::vector<double> GatherNumbers(Bootstrap& bootstrap, double value) {
  std::vector<double> values;
  for (const std::string& text : Gather(bootstrap, std::to_string(value))) values.push_back(std::stod(text));
  return values;
}

std::unique_ptr<Bootstrap> MakeBootstrap(MpiTransport transport) {
  MpiBootstrapOptions options = MpiBootstrapOptions::FromEnvironment();
  options.transport = transport;
  return OrDie(MakeMpiBootstrap(options));
}

class Contestant {
 public:
  explicit Contestant(std::string name) : name_(std::move(name)) {}
  virtual ~Contestant() = default;
  const std::string& name() const { return name_; }
  virtual void Run(Op op) = 0;

 private:
  std::string name_;
};

// Place of a rank's input of a gather.
enum class GatherInput : uint8_t { kApart, kInOutput };

// An engine with the buffers of all collectives.
class Weft final : public Contestant {
 public:
  Weft(std::string name, Bootstrap& bootstrap, int64_t elements, const EngineOptions& engine = {},
       GatherInput gather_input = GatherInput::kApart)
      : Contestant(std::move(name)),
        elements_(elements),
        rank_(OrDie(testing::RankEngine::Make(
            bootstrap, engine, {.segment_bytes = static_cast<size_t>(elements) * 3 * sizeof(float)}))),
        lane_(OrDie(rank_.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllGather))),
        whole_(OrDie(rank_.pool->Acquire(static_cast<size_t>(elements) * sizeof(float)))),
        part_(OrDie(rank_.pool->Acquire(PartBytes(elements, bootstrap)))),
        gather_input_(gather_input == GatherInput::kInOutput
                          ? whole_.data() +
                                PartBytes(elements, bootstrap) * static_cast<size_t>(bootstrap.rank())
                          : part_.data()) {}

  void Run(Op op) override {
    CommEngine& engine = *rank_.engine;
    Work work;
    switch (op) {
      case Op::kAllGather:
        work = engine.AllGather(lane_, gather_input_, whole_.data(), DType::kF32, elements_);
        break;
      case Op::kReduceScatter:
        work =
            engine.ReduceScatter(lane_, whole_.data(), part_.data(), DType::kF32, elements_, ReduceOp::kSum);
        break;
      case Op::kAllReduce:
        work = engine.AllReduce(lane_, whole_.data(), whole_.data(), DType::kF32, elements_, ReduceOp::kSum);
        break;
    }
    OrDie(work.WaitReleased());
  }

 private:
  static size_t PartBytes(int64_t elements, const Bootstrap& bootstrap) {
    return static_cast<size_t>(elements / bootstrap.size()) * sizeof(float);
  }

  int64_t elements_;
  testing::RankEngine rank_;
  LaneId lane_;
  Buffer whole_;
  Buffer part_;
  const std::byte* gather_input_;
};

// MPI, and the sizes of a collective.
struct MpiSetting {
  MpiSetting(const Bootstrap& bootstrap, int64_t elements)
      : size(bootstrap.size()),
        node_ranks(static_cast<int>(bootstrap.node_map().RanksOf(bootstrap.node()).size())),
        whole(elements) {}

  // Elements that a rank sends to other nodes.
  int64_t Crossing(Op op) const {
    return whole * (size - node_ranks) / size / node_ranks * (op == Op::kAllReduce ? 2 : 1);
  }

  MpiBaseline mpi;
  int size;
  int node_ranks;
  int64_t whole;
};

// A contestant over MPI. Like each engine, it has buffers of its own: memory that another contestant has just
// used would still be in the caches.
class OverMpi : public Contestant {
 protected:
  OverMpi(std::string name, MpiSetting& setting)
      : Contestant(std::move(name)),
        setting_(setting),
        input_(static_cast<size_t>(2 * setting.whole)),
        output_(static_cast<size_t>(2 * setting.whole)) {}

  MpiSetting& setting() const { return setting_; }
  const float* input() const { return input_.data(); }
  float* output() { return output_.data(); }

 private:
  MpiSetting& setting_;
  std::vector<float> input_, output_;
};

class Stream : public OverMpi {
 public:
  explicit Stream(MpiSetting& setting, std::string name = "MPI stream") : OverMpi(std::move(name), setting) {}
  void Run(Op op) override {
    setting().mpi.Stream(input(), output(), setting().Crossing(op), setting().node_ranks,
                         [&](int64_t begin, int64_t end) { OnReceived(op, begin, end); });
  }

 private:
  // Elements [begin, end) of the output have been received.
  virtual void OnReceived(Op /*op*/, int64_t /*begin*/, int64_t /*end*/) {}
};

// A gather spreads the copy of the rank's own part over the messages. A sum adds what arrives to a part that
// stays in memory; an all-reduce adds in its first half.
class StreamWithWork final : public Stream {
 public:
  explicit StreamWithWork(MpiSetting& setting)
      : Stream(setting, "MPI stream with work"),
        part_(setting.whole / setting.size),
        own_(static_cast<size_t>(part_), 1),
        result_(static_cast<size_t>(part_)) {}

 private:
  void OnReceived(Op op, int64_t begin, int64_t end) override {
    const int64_t crossing = setting().Crossing(op);
    if (op == Op::kAllGather) {
      const int64_t first = begin * part_ / crossing;
      std::copy(own_.begin() + first, own_.begin() + end * part_ / crossing, result_.begin() + first);
      return;
    }
    if (op == Op::kAllReduce) end = std::min(end, crossing / 2);
    for (int64_t i = begin; i < end;) {
      const int64_t at = i % part_;
      const int64_t run = std::min(end - i, part_ - at);
      Add(output() + i, (i < part_ ? own_ : result_).data() + at, result_.data() + at, run);
      i += run;
    }
  }
  static void Add(const float* received, const float* before, float* sum, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] = before[i] + received[i];
  }

  int64_t part_;
  std::vector<float> own_, result_;
};

class OpenMpi final : public OverMpi {
 public:
  OpenMpi(std::string name, MpiSetting& setting, MpiBaseline::Style style)
      : OverMpi(std::move(name), setting), style_(style) {}
  void Run(Op op) override {
    MpiBaseline& mpi = setting().mpi;
    const int64_t part = setting().whole / setting().size;
    switch (op) {
      case Op::kAllGather:
        return mpi.AllGather(style_, input(), output(), part);
      case Op::kReduceScatter:
        return mpi.ReduceScatter(style_, input(), output(), part);
      case Op::kAllReduce:
        return mpi.AllReduce(style_, input(), output(), setting().whole);
    }
  }

 private:
  MpiBaseline::Style style_;
};

// User and system time of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Series {
  std::vector<double> seconds, cpu_seconds;
};

void Measure(Bootstrap& bootstrap, MpiBaseline& mpi, Contestant& contestant, Op op, Series* series) {
  Gather(bootstrap, "");  // Sleeps until all ranks have ended the last measurement.
  mpi.Barrier();
  const double cpu_begin = CpuSeconds();
  const double seconds = SecondsOf([&] { contestant.Run(op); });
  const double cpu = CpuSeconds() - cpu_begin;
  const std::vector<double> times = GatherNumbers(bootstrap, seconds);
  double all_cpu = 0;
  for (const double of_rank : GatherNumbers(bootstrap, cpu)) all_cpu += of_rank;
  if (series == nullptr) return;
  series->seconds.push_back(*std::max_element(times.begin(), times.end()));
  series->cpu_seconds.push_back(all_cpu);
}

std::string Quartiles(std::vector<double> values, const char* format) {
  std::sort(values.begin(), values.end());
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, Median(values), values[values.size() / 4],
                values[values.size() - 1 - values.size() / 4]);
  return text.data();
}

void Print(const std::string& name, const Series& series, const Series& stream, double gigabytes) {
  std::vector<double> milliseconds;
  std::vector<double> ratios;
  for (size_t i = 0; i < series.seconds.size(); ++i) {
    milliseconds.push_back(series.seconds[i] * 1e3);
    ratios.push_back(stream.seconds[i] / series.seconds[i]);
  }
  const double cpu = Median(series.cpu_seconds) / gigabytes;
  std::printf("  %-24s %s ms, %s of the stream, CPU %6.3f s/GB, %.2f of the stream's\n", name.c_str(),
              Quartiles(milliseconds, "%7.1f (%.1f-%.1f)").c_str(),
              Quartiles(ratios, "%.2f (%.2f-%.2f)").c_str(), cpu,
              Median(series.cpu_seconds) / Median(stream.cpu_seconds));
}

void Compare(Bootstrap& mpi, MpiSetting& setting, const std::vector<std::unique_ptr<Contestant>>& contestants,
             const WireOptions& options) {
  const size_t count = contestants.size();
  for (const Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllReduce}) {
    std::vector<Series> series(count);
    for (int round = -1; round < options.rounds; ++round) {  // The first is a warm-up.
      for (size_t i = 0; i < count; ++i) {
        const size_t turn = (i + static_cast<size_t>(round + 1)) % count;
        Measure(mpi, setting.mpi, *contestants[turn], op, round < 0 ? nullptr : &series[turn]);
      }
    }
    if (mpi.rank() != 0) continue;
    const double rank_bytes = static_cast<double>(setting.Crossing(op)) * sizeof(float);
    std::printf("%s of %lld MiB", kOpNames[static_cast<size_t>(op)], static_cast<long long>(options.mib));
    if (options.gigabits > 0)
      std::printf(", cable %.1f ms", rank_bytes * setting.node_ranks * 8 / options.gigabits * 1e-6);
    std::printf("\n");
    for (size_t i = 0; i < count; ++i)
      Print(contestants[i]->name(), series[i], series[0], rank_bytes * setting.size * 1e-9);
    std::fflush(stdout);
  }
}

void Run(const WireOptions& options) {
  if (options.apart) CountRanksAsNodes();
  const auto mpi = MakeBootstrap(MpiTransport::kMpi);
  const auto sockets = MakeBootstrap(MpiTransport::kTcp);
  MpiSetting setting(*mpi, options.elements());
  std::vector<std::unique_ptr<Contestant>> contestants;
  contestants.push_back(std::make_unique<Stream>(setting));
  contestants.push_back(std::make_unique<StreamWithWork>(setting));
  if (options.open_mpi) {
    contestants.push_back(
        std::make_unique<OpenMpi>("Open MPI blocking", setting, MpiBaseline::Style::kBlocking));
    contestants.push_back(
        std::make_unique<OpenMpi>("Open MPI nonblocking", setting, MpiBaseline::Style::kNonblocking));
  }
  contestants.push_back(std::make_unique<Weft>("weft over MPI", *mpi, options.elements()));
  if (options.in_place) {
    contestants.push_back(std::make_unique<Weft>("weft in place", *mpi, options.elements(), EngineOptions{},
                                                 GatherInput::kInOutput));
  }
  for (const int64_t kib : options.slices_kib) {
    EngineOptions engine;
    engine.slice_bytes = kib << 10;
    contestants.push_back(std::make_unique<Weft>(absl::StrCat("weft, slices of ", kib, " KiB"), *mpi,
                                                 options.elements(), engine));
  }
  for (const int64_t kib : options.runs_kib) {
    EngineOptions engine;
    engine.max_run_bytes = kib << 10;
    contestants.push_back(std::make_unique<Weft>(absl::StrCat("weft, runs of ", kib, " KiB"), *mpi,
                                                 options.elements(), engine));
  }
  if (options.sockets)
    contestants.push_back(std::make_unique<Weft>("weft over sockets", *sockets, options.elements()));
  Compare(*mpi, setting, contestants, options);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Run(weft::bench::ParseWireOptions(argc, argv));
  return 0;
}
