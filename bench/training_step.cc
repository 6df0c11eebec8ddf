// A training step of a small Llama, with zero copy on and off.
//
//   tools/mpirun.sh -n 2 build/release/bench/weft_bench_training_step
//
// Two models of the same shape take a step each in turn, so that both meet the same weather. A step is a
// forward and a backward with all their communication; its time is the slowest rank's, what is reported is
// the median of repeats.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/mpi_baseline.h"
#include "bench/or_die.h"
#include "bench/ratio_reporter.h"
#include "bench/versus.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/nn/llama.h"
#include "weft/sharding/fully_shard.h"

namespace weft::bench {
namespace {

constexpr int kRepeats = 21;
constexpr uint64_t kSeed = 1;

LlamaConfig MakeConfig() {
  LlamaConfig config;
  config.dim = 256;
  config.layers = 6;
  config.head_dim = 64;
  config.ffn_dim = 704;
  return config;
}

struct Arena {
  std::unique_ptr<Bootstrap> bootstrap = OrDie(MakeMpiBootstrap());
  std::unique_ptr<NodeHeap> heap = OrDie(NodeHeap::Create(*bootstrap, {.segment_bytes = size_t{256} << 20}));
  std::unique_ptr<CommEngine> engine = OrDie(CommEngine::Create(*bootstrap, *heap));
  MpiBaseline mpi;
};

// A model on all ranks as one shard group.
class Contestant {
 public:
  Contestant(Arena& arena, bool zero_copy) : net_(OrDie(LlamaModel::Create(MakeConfig()))) {
    const DeviceMesh mesh = OrDie(DeviceMesh::Create({{"shard", -1}}, arena.bootstrap->size()));
    const std::vector<Module*> blocks(net_->blocks().begin(), net_->blocks().end());
    ShardingPolicy policy;
    policy.zero_copy = zero_copy;
    model_ = OrDie(FullyShard(*net_, blocks, mesh, *arena.engine, policy, LoadInitialValues(kSeed)));
  }

  void Step(const Tensor& tokens) {
    Invocation invocation(/*gradients=*/true, /*loss_scale=*/1.0F / static_cast<float>(tokens.elements()));
    OrDie(net_->Forward(invocation, {tokens, tokens}).status());
    float one = 1.0F;
    OrDie(
        net_->Backward(invocation, {Tensor::Borrow(TensorView::Contiguous(&one, DType::kF32, {}))}).status());
    model_->ZeroGradients();
  }
  int64_t copied_bytes() { return model_->context().counters().copied_bytes; }

 private:
  std::unique_ptr<LlamaModel> net_;
  std::unique_ptr<ShardedModel> model_;
};

Tensor MakeTokens(int64_t length) {
  Tensor tokens = Tensor::Empty(DType::kI32, {1, length});
  for (int64_t i = 0; i < length; ++i)
    tokens.As<int32_t>()[i] = static_cast<int32_t>(i * 37 % MakeConfig().vocab_size);
  return tokens;
}

double SlowestMilliseconds(Arena& arena, Contestant& contestant, const Tensor& tokens) {
  arena.mpi.Barrier();
  return arena.mpi.Slowest(SecondsOf([&] { contestant.Step(tokens); })) * 1e3;
}

void TrainingStep(benchmark::State& state, Arena& arena, int64_t length) {
  Contestant zero_copy(arena, true);
  Contestant copies(arena, false);
  const Tensor tokens = MakeTokens(length);
  zero_copy.Step(tokens);  // Records the order of groups, and touches all memory.
  copies.Step(tokens);
  const int64_t copied = copies.copied_bytes();
  std::vector<double> on, off;
  for (auto _ : state) {
    on.push_back(SlowestMilliseconds(arena, zero_copy, tokens));
    off.push_back(SlowestMilliseconds(arena, copies, tokens));
    state.SetIterationTime(on.back() * 1e-3);
  }
  state.counters["on_ms"] = Median(on);
  state.counters["off_ms"] = Median(off);
  state.counters["off_over_on"] = Median(off) / Median(on);
  state.counters["off_copied_bytes"] = static_cast<double>(copied);
  state.counters["on_copied_bytes"] = static_cast<double>(zero_copy.copied_bytes());
}

int Main(int argc, char** argv) {
  Arena arena;
  benchmark::Initialize(&argc, argv);
  for (const int64_t length : {64, 256, 1024}) {
    const auto run = [&arena, length](benchmark::State& state) { TrainingStep(state, arena, length); };
    // A fixed number of iterations: all ranks must do the same.
    benchmark::RegisterBenchmark(("TrainingStep/tokens:" + std::to_string(length)).c_str(), run)
        ->Iterations(kRepeats)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::ConsoleReporter loud(benchmark::ConsoleReporter::OO_None);
  RunOnAllRanks(arena.bootstrap->rank() == 0, loud);
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::Main(argc, argv); }
