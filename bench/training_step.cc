// Contestant of bench/run.py: weft's training step of a Llama, with gradient clipping and AdamW, on any mesh
// and in f32 or bf16, and checkpoints of its state. bench/peers/training_step.py is the contestant of
// PyTorch.
//
// Both compute initial values and tokens from the same formulas, so that their losses can be compared.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/contestant.h"
#include "bench/formula.h"
#include "bench/or_die.h"
#include "bench/step_model.h"
#include "bench/versus.h"
#include "weft/comm/wire_compression.h"
#include "weft/core/parallel.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/nn/llama.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/sharding/fully_shard.h"
#include "weft/train/checkpoint.h"

namespace weft::bench {
namespace {

constexpr double kMaxNorm = 1.0;

// Initial values: uniform with standard deviation 0.02 (bench/formula.h). Norms are 1.
absl::Status LoadFormula(const Parameter& parameter, int64_t start, int64_t count, float* out) {
  if (parameter.shape.size() == 1) {
    std::fill_n(out, count, 1.0F);
  } else {
    FillUniform(parameter.name, 0.02, start, count, out);
  }
  return absl::OkStatus();
}

// Tokens of a rank's sequence from position `first`: 0 for inputs, 1 for targets. Shape [1, length].
Tensor MakeTokens(int64_t vocab_size, int rank, int64_t length, int64_t first) {
  Tensor tokens = Tensor::Empty(DType::kI32, {1, length});
  for (int64_t i = 0; i < length; ++i) {
    const int64_t at = i + first;
    tokens.As<int32_t>()[i] =
        static_cast<int32_t>((7 * at * at + 37 * at + int64_t{101} * rank) % vocab_size);
  }
  return tokens;
}

struct Arena {
  std::unique_ptr<Bootstrap> bootstrap = OrDie(MakeMpiBootstrap());
  std::unique_ptr<NodeHeap> heap = OrDie(NodeHeap::Create(*bootstrap, {.segment_bytes = size_t{2} << 30}));
};

// One sharded model with its optimizer, data and engine.
class Trainer {
 public:
  Trainer(Arena& arena, const Request& request)
      : bootstrap_(*arena.bootstrap),
        ranks_(arena.bootstrap->size()),
        engine_(OrDie(CommEngine::Create(*arena.bootstrap, *arena.heap))),
        net_(OrDie(LlamaModel::Create(ConfigOf(request)))) {
    const DeviceMesh mesh = OrDie(DeviceMesh::Create(
        {{"replicate", IntegerOf(request, "replicate")}, {"shard", IntegerOf(request, "shard")}}, ranks_));
    model_ =
        OrDie(FullyShard(*net_, net_->units(), mesh, *engine_, PolicyOf(request, *engine_), LoadFormula));
    optimizer_ = std::make_unique<ShardedAdamW>(model_->Shards(), AdamWOptions{});
    const int64_t length = IntegerOf(request, "length");
    const int64_t vocab_size = ConfigOf(request).vocab_size;
    inputs_ = MakeTokens(vocab_size, arena.bootstrap->rank(), length, 0);
    targets_ = MakeTokens(vocab_size, arena.bootstrap->rank(), length, 1);
  }

  static LlamaConfig ConfigOf(const Request& request) { return StepModelConfig(StringOf(request, "model")); }

  static ShardingPolicy PolicyOf(const Request& request, CommEngine& engine) {
    ShardingPolicy policy;
    // Gradients are reduced in the default dtype, f32.
    policy.param_dtype = ComputeDType(StringOf(request, "dtype"));
    policy.layout = FlatKindFor(IntegerOf(request, "zero_copy") != 0);
    policy.node_shared = IntegerOf(request, "node_shared") != 0 ? NodeShared::kAuto : NodeShared::kOff;
    if (request.contains("prefetch_depth")) policy.prefetch_depth = IntegerOf(request, "prefetch_depth");
    policy.shard_optimizer_over_replicas = IntegerOf(request, "sharded_optimizer") != 0;
    // The default of `weft train`.
    if (IntegerOf(request, "wire_compression") != 0) {
      policy.wire_compression = OrDie(ChooseWireCompression(engine)).wire_compression;
    }
    return policy;
  }

  // Returns this rank's mean loss. `before_update`: see CheckpointSaver.
  double Step(const std::function<void()>& before_update = [] {}) {
    const auto tokens = static_cast<float>(inputs_.elements() * ranks_);
    Invocation invocation(/*gradients=*/true, /*loss_scale=*/1.0F / tokens);
    const Tensors loss = OrDie(net_->Forward(invocation, {inputs_, targets_}));
    const double value = static_cast<double>(*loss[0].As<float>()) * ranks_;
    OrDie(net_->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    const GradientNorm norm = OrDie(model_->ClipGradNorm(kMaxNorm));
    before_update();
    OrDie(optimizer_->Step(*model_, norm.factor));
    model_->ZeroGradients();
    return value;
  }

  // Saves weights and moments into `folder`, and returns the seconds that it took.
  double Save(const std::string& folder) {
    const auto saver = OpenSaver(folder);
    return SecondsOf([&] {
      OrDie(saver->Start(State()));
      OrDie(saver->Finish());
    });
  }

  // Loads what Save has saved, and returns the seconds that it took.
  double Load(const std::string& folder) {
    OrDie(model_->BeginWriting());
    return SecondsOf([&] {
      const Checkpoint checkpoint = OrDie(Checkpoint::Open(folder + "/" + CheckpointName(1)));
      OrDie(FillShards(model_->Shards(), checkpoint.Loader("model")));
      OrDie(FillShards(optimizer_->FirstMoments(), checkpoint.Loader("optimizer", ".exp_avg")));
      OrDie(FillShards(optimizer_->SecondMoments(), checkpoint.Loader("optimizer", ".exp_avg_sq")));
    });
  }

  // The seconds of `steps` steps, during which a checkpoint is saved if `saves`.
  double StepsWithSave(const std::string& folder, int64_t steps, bool saves) {
    Step();
    const auto saver = OpenSaver(folder);
    return SecondsOf([&] {
      if (saves) OrDie(saver->Start(State()));
      for (int64_t i = 0; i < steps; ++i) {
        Step([&] { OrDie(saver->BeforeUpdate()); });
        if (AllCanAdvance(*saver)) OrDie(saver->Advance().status());
      }
      OrDie(saver->Finish());
    });
  }

 private:
  std::unique_ptr<CheckpointSaver> OpenSaver(const std::string& folder) {
    CheckpointOptions options;
    options.keep = 1;
    return OrDie(CheckpointSaver::Open(bootstrap_, folder, options));
  }
  CheckpointState State() {
    CheckpointState state;
    state.step = 1;
    state.arrays = {{"model", "", model_->Shards()},
                    {"optimizer", ".exp_avg", optimizer_->FirstMoments()},
                    {"optimizer", ".exp_avg_sq", optimizer_->SecondMoments()}};
    return state;
  }
  bool AllCanAdvance(const CheckpointSaver& saver) {
    const auto can = OrDie(bootstrap_.AllGatherBlob(saver.CanAdvance() ? "1" : "0", absl::Seconds(60)));
    return std::all_of(can.begin(), can.end(), [](const std::string& value) { return value == "1"; });
  }

  Bootstrap& bootstrap_;
  int ranks_;
  std::unique_ptr<CommEngine> engine_;
  std::unique_ptr<LlamaModel> net_;
  std::unique_ptr<ShardedModel> model_;
  std::unique_ptr<ShardedAdamW> optimizer_;
  Tensor inputs_, targets_;
};

// Runs one step that is not timed, because other contestants have used the caches, then `steps` timed steps.
Reply Train(Trainer& trainer, int64_t steps) {
  std::vector<double> losses = {trainer.Step()};
  const double seconds = SecondsOf([&] {
    for (int64_t i = 0; i < steps; ++i) losses.push_back(trainer.Step());
  });
  return {{"seconds", {seconds / static_cast<double>(steps)}}, {"losses", losses}};
}

// The models of one case (mesh, length, size and dtype), one for each set of options, so that options can be
// measured interleaved. Models are large, so a new case first destroys those of the previous one.
class Trainers {
 public:
  explicit Trainers(Arena& arena) : arena_(arena) {}

  Reply Train(const Request& request) { return bench::Train(Find(request), IntegerOf(request, "steps")); }
  Reply Save(const Request& request) {
    return {{"seconds", {Find(request).Save(StringOf(request, "folder"))}}};
  }
  Reply Load(const Request& request) {
    return {{"seconds", {Find(request).Load(StringOf(request, "folder"))}}};
  }
  Reply StepsWithSave(const Request& request) {
    return {{"seconds",
             {Find(request).StepsWithSave(StringOf(request, "folder"), IntegerOf(request, "steps"),
                                          IntegerOf(request, "saves") != 0)}}};
  }

 private:
  Trainer& Find(Request request) {
    for (const char* key : {"steps", "folder", "saves"}) request.erase(key);
    const Request requested = {{"replicate", StringOf(request, "replicate")},
                               {"shard", StringOf(request, "shard")},
                               {"length", StringOf(request, "length")},
                               {"model", StringOf(request, "model")},
                               {"dtype", StringOf(request, "dtype")}};
    if (requested != case_) trainers_.clear();
    case_ = requested;
    std::unique_ptr<Trainer>& trainer = trainers_[request];
    if (!trainer) trainer = std::make_unique<Trainer>(arena_, request);
    return *trainer;
  }

  Arena& arena_;
  Request case_;
  std::map<Request, std::unique_ptr<Trainer>> trainers_;  // By case and options.
};

}  // namespace
}  // namespace weft::bench

int main() {
  using namespace weft::bench;
  weft::SetThreadCount(1);
  Arena arena;
  Trainers trainers(arena);
  Serve(arena.bootstrap->rank(),
        {{"train", [&](const Request& request) { return trainers.Train(request); }},
         {"save", [&](const Request& request) { return trainers.Save(request); }},
         {"load", [&](const Request& request) { return trainers.Load(request); }},
         {"steps_with_save", [&](const Request& request) { return trainers.StepsWithSave(request); }}});
  return 0;
}
