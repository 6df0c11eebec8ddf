// What a training run is told: the values of `weft train`'s flags, with their defaults.
//
// A plain value; nothing here looks at files, ranks or the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "weft/comm/types.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/core/dtype.h"
#include "weft/optim/lr_schedule.h"
#include "weft/sharding/policy.h"

namespace weft {

// Where the model comes from: a Hugging Face folder, a preset, or sizes. None given: the preset "tiny".
struct ModelOptions {
  std::string hf_folder;
  std::string preset;
  std::optional<int64_t> layers;
  std::optional<int64_t> dim;
  std::optional<int64_t> heads;
  std::optional<int64_t> kv_heads;    // Default: heads.
  std::optional<int64_t> ffn_dim;     // Default: 8/3 dim, rounded up to a multiple of 64.
  std::optional<int64_t> vocab_size;  // Default: 256, the bytes. May also be given with a preset.
};

struct DataOptions {
  std::vector<std::string> paths;  // None: the text embedded in the program.
  int64_t seq_len = 256;
  bool shuffle = true;
  std::optional<int64_t> batch_size;  // Sequences a step, over all ranks. Default: grad_accum for each rank.
  int64_t grad_accum = 1;             // Microbatches a step.
  // The token that ends a document. Set: sequences are packs of documents, which do not see each other.
  // Unset: each sequence is one document.
  std::optional<int64_t> document_separator;
};

// What weight decay applies to: all parameters, or matrices only (no weights of norms).
enum class DecayScope : uint8_t { kAll, kMatrices };

// Data that the loss is measured on, without training on it.
struct EvalOptions {
  std::vector<std::string> paths;    // None: no evaluation.
  int64_t interval = 0;              // Steps between evaluations; one follows the last step in any case.
  std::optional<int64_t> sequences;  // At most so many, from the start of the data. Default: all.
};

struct OptimizerOptions {
  int64_t steps = 100;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  DecayScope decay = DecayScope::kAll;
  int64_t warmup_steps = 0;
  LrDecay lr_schedule = LrDecay::kConstant;
  double min_lr_ratio = 0.0;
  double clip_grad_norm = 1.0;  // 0: off.
};

// What blocks keep from forward to backward: all that they computed, or their inputs, to compute the rest
// again.
enum class ActivationCheckpoint : uint8_t { kNone, kFull };

// How attention is computed over ranks that share a sequence; kAuto takes what brings the fewest bytes to a
// rank.
enum class CpScheme : uint8_t { kAuto, kUlysses, kGather, kHybrid, kRing };

// Sequences that are split over ranks: see docs/context_parallel.md.
struct ContextOptions {
  int64_t size = 1;  // Ranks that share a sequence.
  CpScheme scheme = CpScheme::kAuto;
  // Ranks that exchange tokens for heads. Default: what the scheme says.
  std::optional<int64_t> ulysses_degree = std::nullopt;
  // Default: shift. Where it is given, a hybrid is a ring on its outer level; else it gathers.
  std::optional<RingRotation> ring_rotate = std::nullopt;
  // Default: head-tail, but with Ulysses, which is balanced by itself; where head-tail is given, auto takes
  // no Ulysses. A query exchange is for gather.
  std::optional<LoadBalance> load_balance = std::nullopt;
};

struct ParallelOptions {
  int64_t dp_replicate = 1;  // -1 in one of the two: the rest of the ranks.
  int64_t dp_shard = -1;
  ContextOptions context;
  bool zero_copy = true;
  NodeShared node_shared = NodeShared::kAuto;
  bool reshard_after_forward = true;
  bool shard_optimizer_over_replicas = false;
  std::optional<int64_t> prefetch_depth = std::nullopt;            // Unset: as ResolvePrefetch sees fit.
  std::optional<WireCompression> wire_compression = std::nullopt;  // Unset: ChooseWireCompression finds out.
  GradientSync grad_sync = GradientSync::kReduceScatter;
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;
  DType param_dtype = DType::kF32;
  DType reduce_dtype = DType::kF32;
};

struct OutputOptions {
  std::string metrics_file;
  std::string export_folder;
};

struct TrainConfig {
  ModelOptions model;
  DataOptions data;
  EvalOptions eval;
  OptimizerOptions optimizer;
  ParallelOptions parallel;
  OutputOptions output;
  uint64_t seed = 0;
  std::string config_file;  // The file of --config. No output may replace it.
};

// "constant", "linear", "cosine".
std::string_view Name(LrDecay decay);
// "all", "matrices".
std::string_view Name(DecayScope scope);
// "none", "full".
std::string_view Name(ActivationCheckpoint checkpoint);
// "auto", "ulysses", "gather", "hybrid", "ring".
std::string_view Name(CpScheme scheme);

// Checks everything that can be known without ranks or files. Errors: kInvalidArgument (names the flag, the
// value and the remedy).
absl::Status Validate(const TrainConfig& config);
// The same of what it says of split sequences alone.
absl::Status Validate(const ContextOptions& context);

}  // namespace weft
