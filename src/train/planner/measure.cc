#include "src/train/planner/measure.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/median.h"
#include "weft/core/parallel.h"
#include "weft/core/reproducible_sum.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"
#include "weft/nn/matmul.h"
#include "weft/nn/sparse/sparse_attention.h"
#include "weft/optim/adamw.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLayers = 2;  // The first block differs: its input is not in the cache.
constexpr int kMinRepeats = 5;
constexpr auto kMeasured = std::chrono::milliseconds(1500);

double Nanoseconds(Clock::duration duration) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

ModelPart PartOf(const Module& module) {
  if (module.name() == "model.embed_tokens") return ModelPart::kEmbedding;
  if (module.name() == "model.norm") return ModelPart::kNorm;
  return module.name() == "lm_head" ? ModelPart::kHead : ModelPart::kBlock;
}

// Times of each part of a model in each of several steps.
class PartStopwatch {
 public:
  explicit PartStopwatch(LlamaModel& model) {
    for (Module* module : model.children()) Watch(*module);
  }
  void Clear() { times_ = {}; }
  ModelTimes Medians() const {
    ModelTimes medians;
    for (size_t part = 0; part < medians.size(); ++part) {
      medians[part] = {Median(times_[part].forward), Median(times_[part].backward)};
    }
    return medians;
  }

 private:
  struct Samples {
    std::vector<double> forward, backward;
  };

  void Watch(Module& module) {
    const auto start = [this](Module&, Invocation&, Tensors&) {
      begin_ = Clock::now();
      return absl::OkStatus();
    };
    module.AddForwardPreHook(start);
    module.AddBackwardPreHook(start);
    Samples& samples = times_[static_cast<size_t>(PartOf(module))];
    module.AddForwardPostHook([this, &samples](Module&, Invocation&, Tensors&) {
      samples.forward.push_back(Nanoseconds(Clock::now() - begin_));
      return absl::OkStatus();
    });
    module.AddBackwardPostHook([this, &samples](Module&, Invocation&, Tensors&) {
      samples.backward.push_back(Nanoseconds(Clock::now() - begin_));
      return absl::OkStatus();
    });
  }

  Clock::time_point begin_;
  std::array<Samples, kModelParts.size()> times_;
};

// A model that is whole on one rank, and a batch for it.
class WholeModel {
 public:
  WholeModel(std::unique_ptr<LlamaModel> model, const PartShape& shape)
      : model_(std::move(model)),
        memory_(*model_, /*seed=*/1, shape.dtype, /*grad_dtype=*/DType::kF32),
        ids_(Tensor::Empty(DType::kI32, {shape.sequences, shape.seq_len})),
        stopwatch_(*model_) {
    constexpr int64_t kStride = 7919;  // A prime: ids lie all over the vocabulary.
    for (int64_t i = 0; i < ids_.elements(); ++i) {
      ids_.As<int32_t>()[i] = static_cast<int32_t>(i * kStride % shape.vocab_size);
    }
  }

  absl::Status Step() {
    const float scale = 1.0F / static_cast<float>(ids_.elements());
    Invocation invocation(/*gradients=*/true, scale);
    invocation.SetRandomKey(MakeRandomKey(/*seed=*/1, /*step=*/0, /*first_sample=*/0, ids_.dim(0)));
    if (model_->config().sparse_attention) IndexerPassOf(invocation).loss_factor = scale;
    WEFT_RETURN_IF_ERROR(model_->Forward(invocation, {ids_, ids_}).status());
    WEFT_RETURN_IF_ERROR(model_->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    memory_.ClearGradients();
    return absl::OkStatus();
  }
  PartStopwatch& stopwatch() { return stopwatch_; }

 private:
  std::unique_ptr<LlamaModel> model_;
  MaterializedParameters memory_;
  Tensor ids_;
  PartStopwatch stopwatch_;
};

absl::StatusOr<std::unique_ptr<WholeModel>> MakeModel(LlamaConfig config,
                                                      const std::optional<LoraOptions>& lora,
                                                      const PartShape& shape) {
  config.layers = kLayers;
  if (config.traits.first_window_layer > 0) config.traits.window.reset();  // Most layers see all keys.
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LlamaModel> model, LlamaModel::Create(config));
  if (lora) {
    LoraOptions of_all_layers = *lora;  // The model has not all layers that a target may name.
    std::set<std::string> targets;
    for (const std::string& target : lora->targets) targets.insert(target.substr(target.rfind('.') + 1));
    of_all_layers.targets.assign(targets.begin(), targets.end());
    WEFT_RETURN_IF_ERROR(AddLora(*model, of_all_layers).status());
  }
  return std::make_unique<WholeModel>(std::move(model), shape);
}

// Steps for a while, at least kMinRepeats times.
absl::Status StepForAWhile(WholeModel& model) {
  WEFT_RETURN_IF_ERROR(model.Step());  // Allocations and compiled kernels.
  model.stopwatch().Clear();
  const Clock::time_point begin = Clock::now();
  for (int repeat = 0; repeat < kMinRepeats || Clock::now() - begin < kMeasured; ++repeat) {
    WEFT_RETURN_IF_ERROR(model.Step());
  }
  return absl::OkStatus();
}

// Runs `body(worker)` on `workers` threads at once.
template <typename Body>
void RunAtOnce(int workers, const Body& body) {
  std::barrier start(workers);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(workers));
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      start.arrive_and_wait();
      body(worker);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Median time of `body` in nanoseconds, with one thread on each core.
template <typename MakeBody>
double TimeOnAllCores(int cores, const MakeBody& make_body) {
  constexpr int kRepeats = 15;
  std::vector<double> medians(static_cast<size_t>(cores));
  RunAtOnce(cores, [&](int worker) {
    SetThreadCount(1);
    auto body = make_body();
    body();
    std::vector<double> times;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const Clock::time_point begin = Clock::now();
      body();
      times.push_back(Nanoseconds(Clock::now() - begin));
    }
    medians[static_cast<size_t>(worker)] = Median(times);
  });
  return Median(medians);
}

}  // namespace

absl::StatusOr<MeasuredModel> MeasureModel(const LlamaConfig& model, const std::optional<LoraOptions>& lora,
                                           const PartShape& shape, int cores) {
  MeasuredModel measured;
  measured.shape = shape;
  const int workers = std::max(1, cores / shape.threads);
  std::vector<std::unique_ptr<WholeModel>> models;
  for (int worker = 0; worker < workers; ++worker) {
    WEFT_ASSIGN_OR_RETURN(models.emplace_back(), MakeModel(model, lora, shape));
  }
  std::vector<absl::Status> outcomes(static_cast<size_t>(workers));
  RunAtOnce(workers, [&](int worker) {
    SetThreadCount(shape.threads);
    outcomes[static_cast<size_t>(worker)] = StepForAWhile(*models[static_cast<size_t>(worker)]);
  });
  for (const absl::Status& outcome : outcomes) WEFT_RETURN_IF_ERROR(outcome);
  measured.times = models.front()->stopwatch().Medians();
  return measured;
}

namespace {

// Operations of one thread in a second, in products of large matrices.
double MeasureFlops(DType dtype, int cores) {
  constexpr int64_t kDim = 768;
  const auto product = [dtype] {
    return [dtype, a = Tensor::Zeros(dtype, {kDim, kDim}), b = Tensor::Zeros(dtype, {kDim, kDim}),
            c = Tensor::Zeros(DType::kF32, {kDim, kDim})]() {
      Matmul(kDim, kDim, kDim, dtype, {a.view().data, kDim}, {b.view().data, kDim}, 0.0F, DType::kF32,
             c.view().data, kDim);
    };
  };
  return 2.0 * kDim * kDim * kDim / TimeOnAllCores(cores, product) * 1e9;
}

}  // namespace

CoreRates MeasureRates(int cores) {
  constexpr int64_t kElements = int64_t{4} << 20;  // More than a core's cache holds.
  constexpr double kBytes = kElements * sizeof(float);
  CoreRates rates;
  rates.flops_f32 = MeasureFlops(DType::kF32, cores);
  rates.flops_bf16 = MeasureFlops(DType::kBF16, cores);
  const auto copy = [] {
    return [from = std::vector<float>(kElements, 1.0F), to = std::vector<float>(kElements)]() mutable {
      std::memcpy(to.data(), from.data(), static_cast<size_t>(kBytes));
    };
  };
  rates.copy_gb_s = kBytes / TimeOnAllCores(cores, copy);
  const auto cast = [] {
    return [from = std::vector<float>(kElements, 1.0F), to = std::vector<uint16_t>(kElements)]() mutable {
      ConvertRun(reinterpret_cast<const std::byte*>(from.data()), DType::kF32,
                 reinterpret_cast<std::byte*>(to.data()), DType::kBF16, kElements);
    };
  };
  rates.cast_gb_s = kBytes / 2 / TimeOnAllCores(cores, cast);
  const auto norm = [] {
    return [values = std::vector<float>(kElements, 1.0F), sum = ReproducibleSum()]() mutable {
      sum += SumSquares(values.data(), kElements);
    };
  };
  rates.norm_ns = TimeOnAllCores(cores, norm) / kElements;
  const auto adamw = [] {
    return
        [weights = std::vector<float>(kElements, 1.0F), gradients = std::vector<float>(kElements, 0.1F),
         first = std::vector<float>(kElements), second = std::vector<float>(kElements), step = 0]() mutable {
          const AdamWSlice slice{weights.data(), gradients.data(), first.data(), second.data(), kElements};
          AdamWStep({slice}, {}, ++step);
        };
  };
  rates.adamw_ns = TimeOnAllCores(cores, adamw) / kElements;
  return rates;
}

}  // namespace weft
