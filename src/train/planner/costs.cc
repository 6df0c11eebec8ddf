#include "src/train/planner/costs.h"

#include <algorithm>
#include <cmath>

#include <absl/strings/str_cat.h>

namespace weft {
namespace {

size_t IndexOf(ModelPart part) { return static_cast<size_t>(part); }

// Elementwise parts read and write memory, at about this many elements in the time of one operation.
constexpr double kOperationsOfElement = 8;

// Distance of blocks with other products, such as those of adapters or of sparse attention. Twice as many
// tokens are nearer.
constexpr double kOtherBlock = 1;

double Distance(int64_t a, int64_t b) {
  return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
}

// Distance of two sizes, of which 0 is none.
double DistanceOfOptional(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return a == b ? 0 : kOtherBlock;
  return Distance(a, b) / 4;
}

// Distance of two shapes: the sum of the logarithms of the ratios of what times depend on.
double Distance(const PartShape& a, const PartShape& b) {
  const double sizes = Distance(a.tokens(), b.tokens()) + Distance(a.dim, b.dim) +
                       Distance(a.ffn_dim, b.ffn_dim) + Distance(a.seq_len, b.seq_len) / 2 +
                       Distance(a.vocab_size, b.vocab_size) / 4 + Distance(a.threads, b.threads);
  const double heads = Distance(a.heads, b.heads) / 2 + Distance(a.kv_heads, b.kv_heads) / 4 +
                       Distance(a.head_dim, b.head_dim) / 2;
  const double kind = DistanceOfOptional(a.selected_keys, b.selected_keys) +
                      DistanceOfOptional(a.window, b.window) +
                      DistanceOfOptional(a.adapter_elements, b.adapter_elements) +
                      (a.qk_norm == b.qk_norm ? 0 : kOtherBlock / 4);
  return sizes + heads + kind;
}

// The window of all layers, if it hides keys.
int64_t WindowOf(const DecoderTraits& traits, int64_t seq_len) {
  if (!traits.window || traits.first_window_layer > 0 || *traits.window >= seq_len) return 0;
  return *traits.window;
}

// Twice the mean number of keys that a query sees: the number of tokens, without a window.
double SeenKeys(const PartShape& shape) {
  if (shape.selected_keys > 0) return static_cast<double>(2 * shape.selected_keys);
  if (shape.window == 0) return static_cast<double>(shape.seq_len);
  const auto window = static_cast<double>(shape.window);
  return 2 * window - window * window / static_cast<double>(shape.seq_len);
}

// Operations of a forward with the weights of the model itself.
double OperationsOfWeights(ModelPart part, const PartShape& shape) {
  const auto tokens = static_cast<double>(shape.tokens());
  const auto dim = static_cast<double>(shape.dim);
  if (part == ModelPart::kHead) return 2 * tokens * dim * static_cast<double>(shape.vocab_size);
  if (part != ModelPart::kBlock) return 0;
  const double others = dim * static_cast<double>(shape.heads * shape.head_dim + 3 * shape.ffn_dim);
  return ProjectionOperations(shape) + 2 * tokens * others;
}

}  // namespace

std::string_view Name(ModelPart part) {
  constexpr std::array<std::string_view, kModelParts.size()> kNames = {"embedding", "block", "norm", "head"};
  return kNames[IndexOf(part)];
}

PartShape ShapeOf(const LlamaConfig& model, int64_t sequences, int64_t seq_len, DType dtype, int threads) {
  return {.dim = model.dim,
          .heads = model.heads,
          .kv_heads = model.kv_heads,
          .head_dim = model.head_dim,
          .ffn_dim = model.ffn_dim,
          .vocab_size = model.vocab_size,
          .selected_keys = model.sparse_attention ? std::min(model.sparse_attention->top_k, seq_len) : 0,
          .window = WindowOf(model.traits, seq_len),
          .adapter_elements = 0,
          .qk_norm = model.traits.qk_norm,
          .sequences = sequences,
          .seq_len = seq_len,
          .dtype = dtype,
          .threads = threads};
}

double AttentionOperations(const PartShape& shape) {
  return 2 * static_cast<double>(shape.tokens()) * SeenKeys(shape) *
         static_cast<double>(shape.heads * shape.head_dim);
}

double ProjectionOperations(const PartShape& shape) {
  const auto columns = static_cast<double>((shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  return 2 * static_cast<double>(shape.tokens()) * static_cast<double>(shape.dim) * columns;
}

double ForwardOperations(ModelPart part, const PartShape& shape) {
  const auto tokens = static_cast<double>(shape.tokens());
  const auto dim = static_cast<double>(shape.dim);
  switch (part) {
    case ModelPart::kBlock:
      return OperationsOfWeights(part, shape) + AttentionOperations(shape) +
             2 * tokens * static_cast<double>(shape.adapter_elements) +
             kOperationsOfElement * tokens * 4 * dim;
    case ModelPart::kHead:
      return OperationsOfWeights(part, shape);
    case ModelPart::kEmbedding:
    case ModelPart::kNorm:
      return kOperationsOfElement * tokens * dim;
  }
  return 0;
}

double BackwardOperations(ModelPart part, const PartShape& shape) {
  const double trained = 2 * ForwardOperations(part, shape);
  return shape.adapter_elements == 0 ? trained : trained - OperationsOfWeights(part, shape);
}

void MachineCosts::Add(const MeasuredModel& model) {
  std::erase_if(models, [&](const MeasuredModel& old) { return old.shape == model.shape; });
  models.push_back(model);
}

ModelTimes TimesAtRate(const PartShape& shape, double flops) {
  ModelTimes times;
  for (const ModelPart part : kModelParts) {
    const double ns = 1e9 / (flops * shape.threads);
    times[IndexOf(part)] = {ForwardOperations(part, shape) * ns, BackwardOperations(part, shape) * ns};
  }
  return times;
}

TimesChoice ChooseTimes(const MachineCosts& costs, const PartShape& shape) {
  const MeasuredModel* nearest = nullptr;
  for (const MeasuredModel& model : costs.models) {
    if (model.shape.dtype != shape.dtype) continue;
    if (nearest == nullptr || model.shape == shape ||
        Distance(model.shape, shape) < Distance(nearest->shape, shape))
      nearest = &model;
  }
  if (nearest == nullptr) {
    // Products in f16 are multiplied in f32 on most CPUs.
    const double flops = shape.dtype == DType::kBF16 ? costs.rates.flops_bf16 : costs.rates.flops_f32;
    return {TimesAtRate(shape, flops),
            absl::StrCat("operations at ", std::llround(flops / 1e9), " GFLOP/s a core"), nullptr, false};
  }
  if (nearest->shape == shape) {
    return {nearest->times, "measured for this model, batch and thread count", nearest, true};
  }
  TimesChoice choice{nearest->times,
                     absl::StrCat("scaled from dim ", nearest->shape.dim, ", ", nearest->shape.sequences,
                                  " x ", nearest->shape.seq_len, " tokens, ", nearest->shape.threads,
                                  nearest->shape.threads == 1 ? " thread" : " threads"),
                     nearest, false};
  for (const ModelPart part : kModelParts) {
    const double threads = static_cast<double>(nearest->shape.threads) / shape.threads;
    choice.times[IndexOf(part)].forward_ns *=
        threads * ForwardOperations(part, shape) / ForwardOperations(part, nearest->shape);
    choice.times[IndexOf(part)].backward_ns *=
        threads * BackwardOperations(part, shape) / BackwardOperations(part, nearest->shape);
  }
  return choice;
}

}  // namespace weft
