// Benchmark of a training step on many simulated ranks: the real engine and the real sharding schedule, on
// virtual time.
//
//   weft_bench_simulated_scaling RANKS RANKS_PER_NODE REPLICATE GBIT_PER_S MEMORY_GB_PER_S BLOCK_MS HEAD_MS
//                                OPTIMIZER_MS
//
// The costs are inputs, measured elsewhere: forward and backward of a block, of the head, the optimizer's
// pass over the whole model, and the speed of copies. Compute is a sleep of that length. Data movement takes
// its own time meanwhile.
//
// Note [Scaled simulation]
// The model has the groups of the 29 M Llama at 1 / kSizeDivisor of their size. Links, memory speed and
// slices have the same divisor, so times stay the same in less memory. In addition, all times except the
// engine's polls and sleeps are divided by kTimeDivisor, which reduces the number of events. Polls and sleeps
// therefore weigh kTimeDivisor times as much as they should: the simulated step is too long rather than too
// short.
//
// Prints the milliseconds of a step on virtual time. A first step, which records the order of groups, is not
// counted.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/or_die.h"
#include "tests/support/rank_engine.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"
#include "weft/sharding/fully_shard.h"

namespace weft::bench {
namespace {

constexpr int kSizeDivisor = 64;
constexpr int kTimeDivisor = 8;
constexpr int kBlocks = 8;
constexpr int64_t kBlockElements = 3'146'752 / kSizeDivisor;
constexpr int64_t kRootElements = 4'194'816 / kSizeDivisor;
constexpr int kSteps = 2;

struct Costs {
  double forward_ms, backward_ms;
};

// A module with parameters whose compute is a sleep of a given time.
class PacedBlock : public Module {
 public:
  PacedBlock(std::string name, int64_t elements, Runtime& runtime, Costs costs)
      : Module(std::move(name)), runtime_(runtime), costs_(costs) {
    weight_ = AddParameter("weight", {elements}, {});
  }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation&, const Tensors& inputs) override {
    Compute(costs_.forward_ms);
    return inputs;
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation&, const Tensors& output_gradients) override {
    Compute(costs_.backward_ms);
    if (weight_->BeginGradWrite() == 0.0F) std::memset(weight_->grad.data, 0, weight_->grad.bytes());
    return output_gradients;
  }
  void Compute(double ms) { runtime_.SleepFor(static_cast<int64_t>(ms * 1e6 / kTimeDivisor)); }

 private:
  Runtime& runtime_;
  Costs costs_;
  Parameter* weight_;
};

// The root module: runs its blocks, then sleeps for the time of the head.
class PacedNet : public PacedBlock {
 public:
  PacedNet(Runtime& runtime, Costs block, Costs head) : PacedBlock("model", kRootElements, runtime, head) {
    for (int i = 0; i < kBlocks; ++i) {
      const std::string name = "model.layers." + std::to_string(i);
      blocks_.push_back(AddChild(std::make_unique<PacedBlock>(name, kBlockElements, runtime, block)));
    }
  }
  const std::vector<Module*>& blocks() const { return blocks_; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& invocation, const Tensors& inputs) override {
    Tensors values = inputs;
    for (Module* block : blocks_) {
      WEFT_ASSIGN_OR_RETURN(values, block->Forward(invocation, values));
    }
    return PacedBlock::ForwardImpl(invocation, values);
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& invocation, const Tensors& output_gradients) override {
    WEFT_ASSIGN_OR_RETURN(Tensors gradients, PacedBlock::BackwardImpl(invocation, output_gradients));
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      WEFT_ASSIGN_OR_RETURN(gradients, (*block)->Backward(invocation, gradients));
    }
    return gradients;
  }

 private:
  std::vector<Module*> blocks_;
};

struct Experiment {
  int ranks, ranks_per_node, replicate;
  double gigabits, memory_gigabytes;
  double block_ms, head_ms, optimizer_ms;

  int shard() const { return ranks / replicate; }
  // Forward takes a third of a module's time.
  static Costs Split(double ms) { return {ms / 3, ms * 2 / 3}; }
};

EngineOptions ShrunkEngine() {
  EngineOptions options;
  options.slice_bytes /= kSizeDivisor;
  options.lane_window_bytes /= kSizeDivisor;
  options.yield_window_bytes /= kSizeDivisor;
  options.background_window_bytes /= kSizeDivisor;
  options.piece_bytes /= kSizeDivisor;
  return options;
}

SimOptions Machine(const Experiment& experiment) {
  SimOptions machine;
  machine.jitter = 0.1;
  machine.poll_ns = 20'000;
  machine.wire_latency_ns /= kTimeDivisor;
  machine.memory_speed = experiment.memory_gigabytes / kSizeDivisor * kTimeDivisor;
  machine.wire_speed = experiment.gigabits / 8 / kSizeDivisor * kTimeDivisor;
  return machine;
}

using StepEnds = std::array<int64_t, kSteps>;  // Virtual time in ns at which the last rank ended each step.

absl::Status Train(Bootstrap& bootstrap, const Experiment& experiment, StepEnds& ends) {
  WEFT_ASSIGN_OR_RETURN(
      const testing::RankEngine rank,
      testing::RankEngine::Make(bootstrap, ShrunkEngine(), {.segment_bytes = size_t{16} << 20}));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"replicate", experiment.replicate},
                                                                   {"shard", experiment.shard()}},
                                                                  experiment.ranks));
  PacedNet net(bootstrap.runtime(), Experiment::Split(experiment.block_ms),
               Experiment::Split(experiment.head_ms));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<ShardedModel> model,
                        FullyShard(net, net.blocks(), mesh, *rank.engine, {}, LoadInitialValues(1)));
  for (int64_t& end : ends) {
    Invocation invocation;
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {Tensor::Empty(DType::kF32, {1})}));
    WEFT_RETURN_IF_ERROR(net.Backward(invocation, outputs).status());
    WEFT_RETURN_IF_ERROR(model->ClipGradNorm(1.0).status());
    bootstrap.runtime().SleepFor(
        static_cast<int64_t>(experiment.optimizer_ms * 1e6 / experiment.shard() / kTimeDivisor));
    model->ZeroGradients();
    end = std::max(end, bootstrap.runtime().NowNs());
  }
  return absl::OkStatus();
}

void Run(const Experiment& experiment) {
  StepEnds ends = {};
  const NodeMap nodes = NodeMap::RanksPerNode(experiment.ranks, experiment.ranks_per_node);
  const SimReport report = RunSimulatedRanks(
      nodes, Machine(experiment), [&](Bootstrap& bootstrap) { return Train(bootstrap, experiment, ends); });
  OrDie(report.status());
  std::printf("%.3f\n", static_cast<double>(ends[kSteps - 1] - ends[0]) * 1e-6 * kTimeDivisor / (kSteps - 1));
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr,
                 "usage: %s RANKS RANKS_PER_NODE REPLICATE GBIT_PER_S MEMORY_GB_PER_S BLOCK_MS HEAD_MS "
                 "OPTIMIZER_MS\n",
                 argv[0]);
    return 2;
  }
  weft::bench::Run({.ranks = std::atoi(argv[1]),
                    .ranks_per_node = std::atoi(argv[2]),
                    .replicate = std::atoi(argv[3]),
                    .gigabits = std::atof(argv[4]),
                    .memory_gigabytes = std::atof(argv[5]),
                    .block_ms = std::atof(argv[6]),
                    .head_ms = std::atof(argv[7]),
                    .optimizer_ms = std::atof(argv[8])});
  return 0;
}
