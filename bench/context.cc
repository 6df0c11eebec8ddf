// Benchmark of context parallelism: self-attention over a sequence that is split over ranks, against one rank
// with the whole sequence and the cores of all ranks.
//
//   tools/mpirun.sh -n 2 build/release/bench/weft_bench_context
//
// A pass is forward and backward of a decoder's self-attention: projections, rotary embedding, attention and
// its exchanges, output projection. All ranks run it together, then rank 0 alone while the others sleep. The
// two are interleaved, so that disturbances affect both. A time is that of the slowest rank. Reported are
// medians over repeats:
//
//   split_ms, alone_ms, alone_over_split   times of both, and their ratio (above 1: the split is faster)
//   exposed_ms                             time that a rank waited for peers; slowest rank
//   work_max_over_mean                     (query, key) pairs of the busiest rank / mean; bounds the speedup
//   received_MB                            bytes that rank 0 received from peers, forward and backward
//   node_MB                                peak node memory of exchanged tensors, on rank 0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/or_die.h"
#include "bench/versus.h"
#include "tests/support/rank_engine.h"
#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/core/parallel.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"

namespace weft::bench {
namespace {

// Reporter of all ranks but the first: all run the registered benchmarks, one prints.
class SilentReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

constexpr uint64_t kSeed = 1;
const AttentionMask kCausal;

LlamaConfig MakeConfig() {
  LlamaConfig config;
  config.dim = 512;
  config.layers = 1;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.ffn_dim = 64;
  config.vocab_size = 64;
  config.max_positions = int64_t{1} << 20;
  return config;
}

AttentionShape ShapeOf(const LlamaConfig& config) {
  return {1, config.heads, config.kv_heads, config.head_dim, config.head_dim, DType::kF32};
}

struct Arena {
  std::unique_ptr<Bootstrap> bootstrap = OrDie(MakeMpiBootstrap());
  testing::RankEngine rank = OrDie(testing::RankEngine::Make(*bootstrap));
  DeviceMesh mesh = OrDie(DeviceMesh::Create({{"context", -1}}, bootstrap->size()));
  ProcessGroup world = OrDie(mesh.Group({"context"}, bootstrap->rank()));
  LaneId lane = OrDie(rank.engine->AddLane(world, LanePurpose::kControl));
  // CPUs of this node's ranks. A rank that runs alone uses all of them.
  int cores = std::min<int>(bootstrap->size(), static_cast<int>(std::thread::hardware_concurrency()));

  // Ranks that wait here sleep and leave the cores to others.
  void Barrier() {
    OpOptions options;
    options.label = "bench";
    OrDie(rank.engine->Barrier(lane, options).Wait());
  }
  double Slowest(double seconds) {
    auto value = static_cast<float>(seconds);
    OrDie(rank.engine->AllReduce(lane, &value, &value, DType::kF32, 1, ReduceOp::kMax).Wait());
    return value;
  }
};

// The self-attention of a decoder with one block, and its weights.
class Layer {
 public:
  Layer() : net_(OrDie(LlamaModel::Create(MakeConfig()))), weights_(*net_, kSeed, DType::kF32, DType::kF32) {}

  LlamaModel& net() { return *net_; }
  void Pass(const std::shared_ptr<const SequenceParts>& sequence, const Tensor& x) {
    Invocation invocation;
    invocation.SetSequence(sequence);
    SelfAttention& attention = net_->blocks()[0]->self_attention();
    const Tensors y = OrDie(attention.Forward(invocation, {x}));
    OrDie(attention.Backward(invocation, y).status());
    weights_.ClearGradients();
  }

 private:
  std::unique_ptr<LlamaModel> net_;
  MaterializedParameters weights_;
};

Tensor MakeInput(int64_t tokens) {
  Tensor x = Tensor::Empty(DType::kF32, {1, tokens, MakeConfig().dim});
  for (int64_t i = 0; i < x.elements(); ++i)
    x.As<float>()[i] = static_cast<float>(i * 37 % 101) * 0.02F - 1.0F;
  return x;
}

void MeasureScheme(benchmark::State& state, Arena& arena, const ContextScheme& scheme, int64_t tokens) {
  const int ranks = arena.bootstrap->size();
  const int rank = arena.bootstrap->rank();
  Layer layer;
  const auto context =
      OrDie(ContextParallel::Create(*arena.rank.engine, layer.net(), arena.mesh, {"context"}, scheme));
  OrDie(ParallelizeLlama(*context, layer.net()));
  const SequenceLayout layout = OrDie(SequenceLayout::Create({tokens}, scheme.Split(ranks)));
  const auto parts = layout.Parts(rank);
  const Tensor own = MakeInput(layout.TokensOf(rank));
  std::optional<Layer> whole;
  Tensor all;
  if (rank == 0) {
    whole.emplace();
    all = MakeInput(tokens);
  }
  const auto split = [&] {
    SetThreadCount(std::max(1, arena.cores / ranks));
    layer.Pass(parts, own);
  };
  const auto alone = [&] {
    SetThreadCount(arena.cores);
    if (rank == 0) whole->Pass(nullptr, all);
  };
  const auto slowest_ms = [&](const auto& pass) {
    arena.Barrier();
    return arena.Slowest(SecondsOf(pass)) * 1e3;
  };
  split();
  alone();
  context->ResetPeak();
  const EngineCounters before = arena.rank.engine->counters();
  split();
  const EngineCounters after = arena.rank.engine->counters();
  std::vector<double> split_ms, alone_ms, exposed_ms;
  for (auto _ : state) {
    double exposed = 0;
    split_ms.push_back(slowest_ms([&] {
      const int64_t begin = arena.rank.engine->counters().wait_ns;
      split();
      exposed = static_cast<double>(arena.rank.engine->counters().wait_ns - begin) * 1e-9;
    }));
    exposed_ms.push_back(arena.Slowest(exposed) * 1e3);
    alone_ms.push_back(slowest_ms(alone));
    state.SetIterationTime(split_ms.back() * 1e-3);
  }
  state.counters["split_ms"] = Median(split_ms);
  state.counters["alone_ms"] = Median(alone_ms);
  state.counters["alone_over_split"] = Median(alone_ms) / Median(split_ms);
  state.counters["exposed_ms"] = Median(exposed_ms);
  state.counters["work_max_over_mean"] = WorkImbalance(scheme, ShapeOf(MakeConfig()), kCausal, layout);
  state.counters["received_MB"] = static_cast<double>(after.context_bytes - before.context_bytes) * 1e-6;
  state.counters["node_MB"] = static_cast<double>(context->peak_buffer_bytes()) * 1e-6;
}

std::vector<ContextScheme> Schemes(int ranks) {
  std::vector<ContextScheme> schemes = {
      ContextScheme::Ulysses(),
      ContextScheme::Gather(),
      ContextScheme::Gather(LoadBalance::kHeadTail),
      ContextScheme::Gather(LoadBalance::kQueryExchange),
      ContextScheme::Ring(),
      ContextScheme::Ring(RingRotation::kShift, LoadBalance::kHeadTail),
      ContextScheme::Ring(RingRotation::kAllGather, LoadBalance::kHeadTail),
  };
  if (ranks % 2 != 0 || ranks < 4) return schemes;
  schemes.push_back({.ulysses_degree = 2, .balance = LoadBalance::kHeadTail});
  schemes.push_back(
      {.ulysses_degree = 2, .ring_rotation = RingRotation::kShift, .balance = LoadBalance::kHeadTail});
  return schemes;
}

int Main(int argc, char** argv) {
  Arena arena;
  benchmark::Initialize(&argc, argv);
  struct Length {
    int64_t tokens;
    int repeats;
  };
  for (const auto& [tokens, repeats] : {Length{1024, 15}, Length{4096, 7}, Length{16384, 3}}) {
    for (const ContextScheme& scheme : Schemes(arena.bootstrap->size())) {
      const auto run = [&arena, scheme, tokens = tokens](benchmark::State& state) {
        MeasureScheme(state, arena, scheme, tokens);
      };
      const std::string name =
          "Attention/tokens:" + std::to_string(tokens) + "/" + scheme.Describe(arena.bootstrap->size());
      // All ranks must run the same number of iterations, so it is fixed.
      benchmark::RegisterBenchmark(name.c_str(), run)
          ->Iterations(repeats)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::ConsoleReporter console(benchmark::ConsoleReporter::OO_Tabular);
  SilentReporter silent;
  benchmark::RunSpecifiedBenchmarks(
      arena.bootstrap->rank() == 0 ? static_cast<benchmark::BenchmarkReporter*>(&console) : &silent);
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::Main(argc, argv); }
