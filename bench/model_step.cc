// Benchmark of a training step of a Llama on one rank: the time of each part, and of the matrix products
// alone.
//
//   OMP_NUM_THREADS=1 build/release/bench/weft_bench_model_step [tokens [repeats [f32|bf16 [29M|110M]]]]
//
// bench/step_model.h has the models. Gradients and master weights are f32 for every compute dtype. Steps and
// runs of the products alone are interleaved; medians are printed. With one thread, times are CPU time of
// that thread, which other processes disturb less. A module's time excludes its child modules.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/or_die.h"
#include "bench/step_model.h"
#include "bench/tensors.h"
#include "bench/versus.h"
#include "weft/core/parallel.h"
#include "weft/core/reproducible_sum.h"
#include "weft/core/tensor.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"
#include "weft/nn/matmul.h"
#include "weft/optim/adamw.h"

namespace weft::bench {
namespace {

double Milliseconds() {
  timespec time;
  clock_gettime(ThreadCount() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

LlamaConfig MakeConfig(const std::string& model, int64_t tokens) {
  LlamaConfig config = StepModelConfig(model);
  config.max_positions = tokens;
  return config;
}

// Milliseconds of one step, by part.
using Parts = std::map<std::string, double>;

double SumOf(const Parts& parts) {
  double sum = 0;
  for (const auto& [part, ms] : parts) sum += ms;
  return sum;
}

struct StepTimes {
  Parts parts;
  double forward, backward;  // Shares of the sum of `parts`.
};

// Hooks that add the time between two hook calls to the part of the running module.
class Stopwatch {
 public:
  explicit Stopwatch(Module& root) {
    for (Module* module : root.Descendants()) Watch(*module);
  }
  void AddTimeTo(const std::string& part) {
    const double now = Milliseconds();
    parts_[part] += now - last_;
    last_ = now;
  }
  void Start() {
    parts_.clear();
    last_ = Milliseconds();
  }
  const Parts& parts() const { return parts_; }

 private:
  static const char* KindOf(const Module& module) {
    if (dynamic_cast<const Linear*>(&module) != nullptr) return "projections";
    if (dynamic_cast<const Attention*>(&module) != nullptr) return "attention";
    if (dynamic_cast<const RmsNorm*>(&module) != nullptr) return "norms";
    if (dynamic_cast<const Rope*>(&module) != nullptr) return "rotary embedding";
    if (dynamic_cast<const GatedUnit*>(&module) != nullptr) return "SwiGLU";
    if (dynamic_cast<const LmHeadLoss*>(&module) != nullptr) return "head and loss";
    if (dynamic_cast<const Embedding*>(&module) != nullptr) return "embedding";
    return "residuals and the rest";
  }

  void Watch(Module& module) {
    const auto enter = [this](Module& entered, Invocation&, Tensors&) {
      AddTimeTo(running_.empty() ? "residuals and the rest" : running_.back());
      running_.emplace_back(KindOf(entered));
      return absl::OkStatus();
    };
    const auto leave = [this](Module&, Invocation&, Tensors&) {
      AddTimeTo(running_.back());
      running_.pop_back();
      return absl::OkStatus();
    };
    module.AddForwardPreHook(enter);
    module.AddForwardPostHook(leave);
    module.AddBackwardPreHook(enter);
    module.AddBackwardPostHook(leave);
  }

  std::vector<std::string> running_;
  Parts parts_;
  double last_ = 0;
};

class ModelStep {
 public:
  ModelStep(const LlamaConfig& config, int64_t tokens, DType dtype)
      : net_(OrDie(LlamaModel::Create(config))),
        memory_(*net_, /*seed=*/1, dtype, /*grad_dtype=*/DType::kF32),
        ids_(Tensor::Empty(DType::kI32, {1, tokens})),
        stopwatch_(*net_) {
    for (int64_t i = 0; i < tokens; ++i)
      ids_.As<int32_t>()[i] = static_cast<int32_t>(i * 7919 % config.vocab_size);
    for (const auto& parameter : net_->AllParameters()) {
      for (auto* state : {&masters_, &first_moments_, &second_moments_}) {
        state->push_back(Tensor::Zeros(DType::kF32, {parameter->elements()}));
      }
    }
  }

  StepTimes Run() {
    stopwatch_.Start();
    Invocation invocation(/*gradients=*/true, /*loss_scale=*/1.0F / static_cast<float>(ids_.elements()));
    OrDie(net_->Forward(invocation, {ids_, ids_}).status());
    stopwatch_.AddTimeTo("residuals and the rest");
    const double forward = SumOf(stopwatch_.parts());
    OrDie(net_->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    stopwatch_.AddTimeTo("residuals and the rest");
    const double backward = SumOf(stopwatch_.parts()) - forward;
    const double factor = ClipFactor(GradientNorm(), 1.0);
    stopwatch_.AddTimeTo("gradient norm");
    Update(static_cast<float>(factor));
    stopwatch_.AddTimeTo("AdamW");
    memory_.ClearGradients();
    return {stopwatch_.parts(), forward, backward};
  }

 private:
  double GradientNorm() const {
    ReproducibleSum sum;
    for (const auto& parameter : net_->AllParameters()) {
      sum += SumSquares(parameter->grad.As<float>(), parameter->elements());
    }
    return TwoNormOf(sum);
  }

  void Update(float factor) {
    std::vector<AdamWSlice> slices;
    const auto parameters = net_->AllParameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      slices.push_back({masters_[i].As<float>(), parameters[i]->grad.As<float>(),
                        first_moments_[i].As<float>(), second_moments_[i].As<float>(),
                        parameters[i]->elements()});
    }
    AdamWStep(slices, {}, ++steps_, factor);
  }

  std::unique_ptr<LlamaModel> net_;
  MaterializedParameters memory_;
  Tensor ids_;
  std::vector<Tensor> masters_, first_moments_, second_moments_;  // One per parameter.
  int64_t steps_ = 0;
  Stopwatch stopwatch_;
};

// y = x W^T, dx = dy W and dW = dy^T x of every projection and of the head, once each.
class ProductsAlone {
 public:
  ProductsAlone(const LlamaConfig& config, int64_t tokens, DType dtype)
      : config_(config),
        tokens_(tokens),
        dtype_(dtype),
        x_(Sines(tokens * Widest(), dtype)),
        dy_(Sines(tokens * Widest(), dtype)),
        result_(Tensor::Zeros(dtype, {tokens * Widest()})),
        weight_(Sines(Widest() * config_.dim, dtype)),
        weight_gradient_(Sines(Widest() * config_.dim, DType::kF32)) {}

  // Returns milliseconds.
  double Run() const {
    const double start = Milliseconds();
    const int64_t dim = config_.dim;
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      for (const int64_t heads : {config_.heads, config_.kv_heads, config_.kv_heads}) {
        Multiply(heads * config_.head_dim, dim);
      }
      Multiply(dim, config_.heads * config_.head_dim);
      Multiply(config_.ffn_dim, dim);
      Multiply(config_.ffn_dim, dim);
      Multiply(dim, config_.ffn_dim);
    }
    Multiply(config_.vocab_size, dim);
    return Milliseconds() - start;
  }
  double Flops() const {
    const int64_t projections =
        config_.dim * (2 * (config_.heads + config_.kv_heads) * config_.head_dim + 3 * config_.ffn_dim);
    return 6.0 *
           static_cast<double>(tokens_ * (config_.layers * projections + config_.vocab_size * config_.dim));
  }
  // The processor must not multiply values that are not finite: a step does not.
  void CheckThatResultsAreFinite() const {
    if (!std::isfinite(TwoNormOf(SumSquares(weight_gradient_.As<float>(), weight_gradient_.elements())))) {
      OrDie(absl::InternalError("the products alone have results that are not finite"));
    }
  }
  // Operations of causal attention: queries attend to half of the keys; two products forward, four backward.
  double AttentionFlops() const {
    return 6.0 * static_cast<double>(config_.layers * config_.heads * config_.head_dim * tokens_ * tokens_);
  }

 private:
  int64_t Widest() const { return std::max(config_.vocab_size, config_.ffn_dim); }

  void Multiply(int64_t out, int64_t in) const {
    const Factor x = {x_.view().data, in};
    const Factor dy = {dy_.view().data, out};
    const void* weight = weight_.view().data;
    Matmul(tokens_, out, in, dtype_, x, {weight, in, true}, 0.0F, dtype_, result_.view().data, out);
    Matmul(tokens_, in, out, dtype_, dy, {weight, in}, 0.0F, dtype_, result_.view().data, in);
    Matmul(out, in, tokens_, dtype_, {dy.data, out, true}, x, 0.0F, DType::kF32, weight_gradient_.view().data,
           in);
  }

  LlamaConfig config_;
  int64_t tokens_;
  DType dtype_;
  Tensor x_, dy_, result_, weight_,
      weight_gradient_;  // Results are not factors: they would grow without limit.
};

void Measure(const std::string& model, int64_t tokens, int repeats, DType dtype) {
  const LlamaConfig config = MakeConfig(model, tokens);
  ModelStep step(config, tokens, dtype);
  const ProductsAlone products(config, tokens, dtype);
  std::map<std::string, std::vector<double>> parts;
  std::vector<double> steps, forwards, backwards, alone;
  for (int repeat = -2; repeat < repeats; ++repeat) {
    const StepTimes measured = step.Run();
    const double products_ms = products.Run();
    if (repeat < 0) continue;  // Warm-up: allocations and compiled kernels.
    for (const auto& [part, ms] : measured.parts) parts[part].push_back(ms);
    steps.push_back(SumOf(measured.parts));
    forwards.push_back(measured.forward);
    backwards.push_back(measured.backward);
    alone.push_back(products_ms);
  }
  products.CheckThatResultsAreFinite();
  const double step_ms = Median(steps);
  const double alone_ms = Median(alone);
  std::printf("%s, %lld tokens, %s, %d threads, %d repeats\n", model.c_str(), static_cast<long long>(tokens),
              Name(dtype).data(), ThreadCount(), repeats);
  for (const auto& [part, times] : parts) {
    std::printf("  %-24s %8.1f ms  %5.1f%%\n", part.c_str(), Median(times), 100 * Median(times) / step_ms);
  }
  std::printf("  %-24s %8.1f ms and %.1f ms\n", "forward and backward", Median(forwards), Median(backwards));
  const double rate = (products.Flops() + products.AttentionFlops()) / step_ms * 1e-6;
  const double rate_alone = products.Flops() / alone_ms * 1e-6;
  std::printf("  %-24s %8.1f ms  %6.1f GFLOP/s\n", "step", step_ms, rate);
  std::printf("  %-24s %8.1f ms  %6.1f GFLOP/s\n", "products alone", alone_ms, rate_alone);
  std::printf("  %-24s %8.1f%%\n", "rate of the step / alone", 100 * rate / rate_alone);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 1024;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 15;
  const std::string dtype = argc > 3 ? argv[3] : "f32";
  const std::string model = argc > 4 ? argv[4] : "29M";
  if (tokens < 1 || repeats < 1) {
    std::fprintf(stderr, "usage: weft_bench_model_step [tokens [repeats [f32|bf16 [29M|110M]]]]\n");
    return 2;
  }
  weft::bench::Measure(model, tokens, repeats, weft::bench::ComputeDType(dtype));
  return 0;
}
