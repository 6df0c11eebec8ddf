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
//
// bench/run.py runs it as a contestant. bench/peers/context.py computes the same by ring attention in
// PyTorch.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/contestant.h"
#include "bench/formula.h"
#include "bench/or_die.h"
#include "bench/step_model.h"
#include "bench/tensors.h"
#include "bench/versus.h"
#include "tests/support/rank_engine.h"
#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor.h"
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

constexpr int64_t kHeadDim = 64;
const AttentionMask kCausal;

LlamaConfig MakeConfig(int64_t heads, int64_t kv_heads) {
  LlamaConfig config;
  config.dim = heads * kHeadDim;
  config.layers = 1;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = kHeadDim;
  config.ffn_dim = 64;
  config.vocab_size = 64;
  config.max_positions = int64_t{1} << 20;
  return config;
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

// The self-attention of a decoder with one block, and its weights by formula.
class Layer {
 public:
  Layer(const LlamaConfig& config, DType dtype)
      : net_(OrDie(LlamaModel::Create(config))), weights_(*net_, /*seed=*/1, dtype, DType::kF32) {
    const double deviation = 1 / std::sqrt(static_cast<double>(config.dim));  // Queries and keys near 1.
    for (const auto& parameter : net_->blocks()[0]->self_attention().AllParameters()) {
      const Tensor values = Tensor::Empty(DType::kF32, parameter->shape);
      FillUniform(parameter->name, deviation, 0, values.elements(), values.As<float>());
      ConvertRun(values.view().data, DType::kF32, parameter->data.data, dtype, values.elements());
    }
  }

  LlamaModel& net() { return *net_; }
  // Returns the output, which is taken as its own gradient, and the gradient of x.
  Tensors Pass(const std::shared_ptr<const SequenceParts>& sequence, const Tensor& x) {
    Invocation invocation;
    invocation.SetSequence(sequence);
    SelfAttention& attention = net_->blocks()[0]->self_attention();
    const Tensors y = OrDie(attention.Forward(invocation, {x}));
    const Tensors dx = OrDie(attention.Backward(invocation, y));
    weights_.ClearGradients();
    return {y[0], dx[0]};
  }

 private:
  std::unique_ptr<LlamaModel> net_;
  MaterializedParameters weights_;
};

// Input [1, tokens, dim] of these ranges of the sequence, by formula.
Tensor MakeInput(const std::vector<TokenRange>& ranges, int64_t dim, DType dtype) {
  int64_t tokens = 0;
  for (const TokenRange& range : ranges) tokens += range.count;
  const Tensor x = Tensor::Empty(DType::kF32, {1, tokens, dim});
  float* next = x.As<float>();
  for (const TokenRange& range : ranges) {
    FillUniform("x", 1.0, range.begin * dim, range.count * dim, next);
    next += range.count * dim;
  }
  return Converted(x, dtype);
}

// A sequence over all ranks by a scheme, and the same sequence on rank 0 alone.
class Case {
 public:
  Case(Arena& arena, const LlamaConfig& config, const ContextScheme& scheme, int64_t tokens, DType dtype)
      : arena_(arena),
        rank_(arena.bootstrap->rank()),
        tokens_(tokens),
        dim_(config.dim),
        layer_(config, dtype),
        context_(OrDie(
            ContextParallel::Create(*arena.rank.engine, layer_.net(), arena.mesh, {"context"}, scheme))),
        layout_(OrDie(SequenceLayout::Create({tokens}, scheme.Split(arena.bootstrap->size())))),
        own_(MakeInput(layout_.RangesOf(rank_), dim_, dtype)) {
    OrDie(ParallelizeLlama(*context_, layer_.net()));
    if (rank_ != 0) return;
    whole_.emplace(config, dtype);
    all_ = MakeInput({{0, tokens}}, dim_, dtype);
  }

  Tensors Split() {
    SetThreadCount(std::max(1, arena_.cores / arena_.bootstrap->size()));
    return layer_.Pass(layout_.Parts(rank_), own_);
  }
  // Does nothing on the other ranks.
  void Alone() {
    SetThreadCount(arena_.cores);
    if (rank_ == 0) whole_->Pass(nullptr, all_);
  }

  // Adds the checksums of what Split has returned, whose elements are numbered as in the sequence.
  void AddChecksums(const Tensors& results, Reply& reply) const {
    for (size_t i = 0; i < results.size(); ++i) {
      const Tensor values = Converted(results[i], DType::kF32);
      Checksums checksums(tokens_ * dim_);
      const float* next = values.As<float>();
      for (const TokenRange& range : layout_.RangesOf(rank_)) {
        checksums.Add(next, range.begin * dim_, range.count * dim_);
        next += range.count * dim_;
      }
      checksums.AddTo(reply, i == 0 ? "y" : "dx");
    }
  }

  ContextParallel& context() { return *context_; }
  const SequenceLayout& layout() const { return layout_; }

 private:
  Arena& arena_;
  int rank_;
  int64_t tokens_, dim_;
  Layer layer_;
  std::unique_ptr<ContextParallel> context_;
  SequenceLayout layout_;
  Tensor own_;
  std::optional<Layer> whole_;  // On rank 0.
  Tensor all_;
};

void MeasureScheme(benchmark::State& state, Arena& arena, const ContextScheme& scheme, int64_t tokens) {
  const LlamaConfig config = MakeConfig(8, 2);
  Case layer(arena, config, scheme, tokens, DType::kF32);
  const auto slowest_ms = [&](const auto& pass) {
    arena.Barrier();
    return arena.Slowest(SecondsOf(pass)) * 1e3;
  };
  layer.Split();
  layer.Alone();
  layer.context().ResetPeak();
  const EngineCounters before = arena.rank.engine->counters();
  layer.Split();
  const EngineCounters after = arena.rank.engine->counters();
  std::vector<double> split_ms, alone_ms, exposed_ms;
  for (auto _ : state) {
    double exposed = 0;
    split_ms.push_back(slowest_ms([&] {
      const int64_t begin = arena.rank.engine->counters().wait_ns;
      layer.Split();
      exposed = static_cast<double>(arena.rank.engine->counters().wait_ns - begin) * 1e-9;
    }));
    exposed_ms.push_back(arena.Slowest(exposed) * 1e3);
    alone_ms.push_back(slowest_ms([&] { layer.Alone(); }));
    state.SetIterationTime(split_ms.back() * 1e-3);
  }
  const AttentionShape shape = {1,          config.heads, config.kv_heads, config.head_dim, config.head_dim,
                                DType::kF32};
  state.counters["split_ms"] = Median(split_ms);
  state.counters["alone_ms"] = Median(alone_ms);
  state.counters["alone_over_split"] = Median(alone_ms) / Median(split_ms);
  state.counters["exposed_ms"] = Median(exposed_ms);
  state.counters["work_max_over_mean"] = WorkImbalance(scheme, shape, kCausal, layer.layout());
  state.counters["received_MB"] = static_cast<double>(after.context_bytes - before.context_bytes) * 1e-6;
  state.counters["node_MB"] = static_cast<double>(layer.context().peak_buffer_bytes()) * 1e-6;
}

// Answers the requests of bench/run.py: passes with a gather and head-tail layout, and their checksums.
class Contestant {
 public:
  explicit Contestant(Arena& arena) : arena_(arena) {}

  void ServeRequests() {
    Serve(arena_.bootstrap->rank(), {{"run", [this](const Request& request) { return Run(request); }},
                                     {"check", [this](const Request& request) { return Check(request); }}});
  }

 private:
  Reply Run(const Request& request) {
    Case& layer = Find(request);
    if (StringOf(request, "variant") == "split") return {{"seconds", {SecondsOf([&] { layer.Split(); })}}};
    return {{"seconds", {SecondsOf([&] { layer.Alone(); })}}};
  }
  Reply Check(const Request& request) {
    Case& layer = Find(request);
    Reply reply;
    layer.AddChecksums(layer.Split(), reply);
    return reply;
  }
  // Keeps the case of the last request.
  Case& Find(Request request) {
    request.erase("variant");
    if (request != request_) {
      const int heads = IntegerOf(request, "heads");
      case_.emplace(arena_, MakeConfig(heads, heads), ContextScheme::Gather(LoadBalance::kHeadTail),
                    IntegerOf(request, "tokens"), ComputeDType(StringOf(request, "dtype")));
      request_ = request;
    }
    return *case_;
  }

  Arena& arena_;
  Request request_;
  std::optional<Case> case_;
};

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
  if (std::getenv("WEFT_BENCH_SOCKET") != nullptr) {
    Contestant(arena).ServeRequests();
    return 0;
  }
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
