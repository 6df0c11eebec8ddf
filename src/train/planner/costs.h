// Costs of computation on a machine: measured times of modules, and rates for everything else.
//
// Pure. Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/dtype.h"
#include "weft/nn/llama_config.h"

namespace weft {

// The parts of a model whose times differ. kEmbedding and kNorm belong to the root's parameter group.
enum class ModelPart : uint8_t { kEmbedding, kBlock, kNorm, kHead };
inline constexpr std::array kModelParts = {ModelPart::kEmbedding, ModelPart::kBlock, ModelPart::kNorm,
                                           ModelPart::kHead};
// "embedding", "block", "norm", "head".
std::string_view Name(ModelPart part);

// The sizes that determine the time of a part on one rank, for one microbatch.
struct PartShape {
  int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_dim = 0, vocab_size = 0;
  int64_t selected_keys = 0;     // Sparse attention; 0: dense.
  int64_t window = 0;            // Keys of each query in all layers; 0: all keys before it.
  int64_t adapter_elements = 0;  // Of a block's adapters, which alone are trained; 0: all weights are.
  bool qk_norm = false;
  int64_t sequences = 0;
  int64_t seq_len = 0;
  DType dtype = DType::kF32;
  int threads = 1;

  int64_t tokens() const { return sequences * seq_len; }
  friend bool operator==(const PartShape&, const PartShape&) = default;
};
PartShape ShapeOf(const LlamaConfig& model, int64_t sequences, int64_t seq_len, DType dtype, int threads);

// Floating-point operations. A backward has twice as many as a forward, but no products for the gradients of
// frozen weights. Causal attention counts half of the pairs. Parts without products count one operation for
// each element that they touch.
double ForwardOperations(ModelPart part, const PartShape& shape);
double BackwardOperations(ModelPart part, const PartShape& shape);
// Those of the forward of a block's attention, and of its projections of queries, keys and values.
double AttentionOperations(const PartShape& shape);
double ProjectionOperations(const PartShape& shape);

struct PartTimes {
  double forward_ns = 0;
  double backward_ns = 0;

  friend bool operator==(const PartTimes&, const PartTimes&) = default;
};
using ModelTimes = std::array<PartTimes, kModelParts.size()>;  // By ModelPart.

struct MeasuredModel {
  PartShape shape;
  ModelTimes times;
};

// Rates of one core while the other cores of the machine do the same.
struct CoreRates {
  double flops_f32 = 40e9;  // Operations in a second, in products of large matrices.
  double flops_bf16 = 60e9;
  double copy_gb_s = 4;  // Bytes copied between ranks of a node, in 1e9 a second.
  double cast_gb_s = 4;  // Bytes written by casts and by copies within a rank.
  // Bytes passed to the network stack, or taken from it, by MPI over TCP. Between two emulated hosts, which
  // is as near to two hosts as one machine comes; over one connection of a host to itself it is ten times as
  // much.
  double wire_gb_s = 0.6;
  double adamw_ns = 2;   // For each element.
  double norm_ns = 0.3;  // For each element.
};

struct MachineCosts {
  std::string source = "built-in rates, not those of this machine: use --measure";
  CoreRates rates;
  std::vector<MeasuredModel> models;

  // Adds or replaces the model with its shape.
  void Add(const MeasuredModel& model);
};

struct TimesChoice {
  ModelTimes times;
  std::string reason;                       // For the user: "measured for this model", ….
  const MeasuredModel* measured = nullptr;  // The model that `times` come from, if any.
  bool exact = false;                       // It has the wanted shape.
};
// Times of `shape`: those of a measured model with the same shape; otherwise those of the nearest measured
// model of the same dtype, in proportion to operations; otherwise operations at the rate of the cores.
// Lifetime: `costs` must outlive the choice.
TimesChoice ChooseTimes(const MachineCosts& costs, const PartShape& shape);
// Operations at `flops` in a second for each thread.
ModelTimes TimesAtRate(const PartShape& shape, double flops);

}  // namespace weft
