// Configuration of a training run: the values of `weft train`'s flags, with their defaults.
//
// Pure: nothing here reads files, ranks or the machine. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/comm/types.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/core/dtype.h"
#include "weft/mesh/share_domain.h"
#include "weft/nn/linear.h"
#include "weft/nn/llama_config.h"
#include "weft/optim/adamw.h"
#include "weft/optim/loss_scaler.h"
#include "weft/optim/lr_schedule.h"
#include "weft/optim/muon.h"
#include "weft/optim/sgd.h"
#include "weft/sharding/policy.h"

namespace weft {

// Source of the model: a Hugging Face folder, a preset, or sizes. If none is given: the preset "tiny".
struct ModelOptions {
  // A Hugging Face folder, or the path of its config.json for a new model. Empty: a new Llama of these sizes.
  std::string hf_model;
  std::string preset;
  std::optional<int64_t> layers;
  std::optional<int64_t> dim;
  std::optional<int64_t> heads;
  std::optional<int64_t> kv_heads;    // Default: heads.
  std::optional<int64_t> ffn_dim;     // Default: 8/3 dim, rounded up to a multiple of 64.
  std::optional<int64_t> vocab_size;  // Default: 256, one per byte value. Allowed with a preset too.

  // The folder of hf_model; empty without one.
  std::string hf_folder() const;
  // True if hf_model names a folder, whose weights the run starts from.
  bool hf_weights() const;
};

// Attention of the model. kDsa: sparse, with a lightning indexer in every layer
// (weft/nn/sparse/sparse_attention.h).
enum class AttentionKind : uint8_t { kDense, kDsa };

// Training of the indexers of sparse attention.
struct IndexerTraining {
  int64_t warmup_steps = 0;  // The first steps train the indexers alone, with dense attention.
  // Factor of the indexers' loss, which never reaches other parameters. Source of the default: DeepSeek-AI,
  // "DeepSeek-V3.2-Exp", 2025, equations 3 and 4, which have no factor.
  double loss_coef = 1;

  bool IsWarmUp(int64_t step) const { return step <= warmup_steps; }
};

// The model's attention. The values after `kind` are for kDsa only; their defaults are those of
// SparseAttentionConfig and IndexerTraining.
struct AttentionConfig {
  AttentionKind kind = AttentionKind::kDense;
  std::optional<int64_t> top_k;
  std::optional<int64_t> index_heads;
  std::optional<int64_t> index_dim;
  std::optional<int64_t> warmup_steps;
  std::optional<double> loss_coef;

  bool is_sparse() const { return kind == AttentionKind::kDsa; }
  // Both unset for dense attention.
  std::optional<SparseAttentionConfig> sparse_config() const;
  std::optional<IndexerTraining> indexer_training() const;
};

// Low-rank adapters (LoRA) of a frozen model: new ones, or those of a folder. If neither is given, the whole
// model is trained.
struct LoraConfig {
  std::optional<int64_t> rank = std::nullopt;  // Of new adapters.
  // For new adapters only. The defaults are those of LoraOptions.
  std::optional<double> alpha = std::nullopt;
  std::string targets = "";  // Names with commas between them, or "all-linear". Empty: the default.
  std::optional<double> dropout = std::nullopt;
  std::string adapter = "";  // PEFT folder to go on from. Empty: none.

  bool enabled() const { return rank.has_value() || !adapter.empty(); }
  // Unset without `rank`.
  std::optional<LoraOptions> new_adapters() const;
};

struct DataOptions {
  std::vector<std::string> paths;  // Empty: the text embedded in the program.
  // Each file of data and of evaluation data has a mask beside it, which says which tokens have a loss.
  bool loss_mask = false;
  int64_t seq_len = 256;
  bool shuffle = true;
  // Sequences per step, over all ranks. Default: grad_accum x data-parallel ranks.
  std::optional<int64_t> batch_size;
  int64_t grad_accum = 1;  // Microbatches per step.
  // The token that ends a document. If set, a sequence is a pack of documents, and attention stays within
  // each document. If unset, each sequence is one document.
  std::optional<int64_t> document_separator;
};

// Parameters to which weight decay applies: all, or matrices only (not the weights of norms).
enum class DecayScope : uint8_t { kAll, kMatrices };

// Evaluation: the loss on separate data, without training on them.
struct EvalOptions {
  std::vector<std::string> paths;    // Empty: no evaluation.
  int64_t interval = 0;              // Steps between evaluations; 0: only at the end.
  std::optional<int64_t> sequences;  // Evaluates at most this many, from the first. Default: all.
};

// Update rule. kMuon: of the matrices of the decoder layers; the other parameters take AdamW.
enum class OptimizerKind : uint8_t { kAdamW, kSgd, kMuon };

struct OptimizerOptions {
  int64_t steps = 100;  // 0: evaluation alone.
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  // For SGD and Muon. Default: 0 for SGD, that of MuonOptions for Muon.
  std::optional<double> momentum = std::nullopt;
  // For Muon: the learning rate of the parameters that take AdamW. Default: lr.
  std::optional<double> adamw_lr = std::nullopt;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;
  double clip_grad_norm = 1.0;  // 0: no clipping.
  // Steps whose loss or gradient norm is not finite do not update the weights. A run ends when it has skipped
  // more than this many. Steps after which a dynamic loss scale backs off from above 1 do not count.
  int64_t max_skipped_steps = 0;
  OptimizerKind kind = OptimizerKind::kAdamW;
  // For SGD and Muon. Default: off for SGD, on for Muon.
  std::optional<bool> nesterov = std::nullopt;
  std::optional<MuonLrScale> muon_lr_scale = std::nullopt;  // For Muon. Default: original.
  DecayScope decay = DecayScope::kAll;
  LrDecay lr_schedule = LrDecay::kConstant;
  // Scale of losses if compute or reductions are in f16: "dynamic", or a positive number. Empty: dynamic in
  // f16.
  std::string loss_scale = "";
  int64_t loss_scale_growth_interval = 2000;  // Of a dynamic one: steps without an overflow until it doubles.
  // Update each group of parameters in the backward, as soon as its gradients are reduced.
  bool in_backward = false;

  AdamWOptions adamw() const;
  SgdOptions sgd() const;
  MuonOptions muon() const;
};

// Activations that blocks keep from forward to backward. kNone: all. kFull: their inputs only; backward
// recomputes the rest.
enum class ActivationCheckpoint : uint8_t { kNone, kFull };

// Scheme of attention over ranks that share a sequence. kAuto: the scheme that moves the fewest bytes to a
// rank, among those that balance the work; never a ring. See weft/context_parallel/choose_scheme.h.
enum class CpScheme : uint8_t { kAuto, kUlysses, kGather, kHybrid, kRing };

// Context parallelism: sequences split over ranks, see docs/context_parallel.md.
struct ContextOptions {
  int64_t size = 1;  // Ranks over which each sequence is split.
  CpScheme scheme = CpScheme::kAuto;
  // Ranks that exchange tokens for heads. Default: the cheapest degree that the scheme allows.
  std::optional<int64_t> ulysses_degree = std::nullopt;
  // Default: shift. If it is set, the outer level of a hybrid is a ring; otherwise the outer level gathers.
  std::optional<RingRotation> ring_rotate = std::nullopt;
  // Default: head-tail; Ulysses needs none. If head-tail is set, kAuto does not choose Ulysses. A query
  // exchange requires kGather.
  std::optional<LoadBalance> load_balance = std::nullopt;
};

struct ParallelOptions {
  int64_t dp_replicate = 1;  // -1: all remaining ranks. Allowed in only one of the two.
  int64_t dp_shard = -1;
  ContextOptions context;
  bool zero_copy = true;
  NodeShared node_shared = NodeShared::kAuto;
  ShareDomain share_domain = ShareDomain::kAuto;
  bool reshard_after_forward = true;
  bool shard_optimizer_over_replicas = false;
  std::optional<int64_t> prefetch_depth = std::nullopt;            // Unset: ResolvePrefetch chooses.
  std::optional<WireCompression> wire_compression = std::nullopt;  // Unset: ChooseWireCompression measures.
  GradientSync grad_sync = GradientSync::kReduceScatter;
  ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;
  int64_t check_replicas = 0;  // Steps between comparisons of the replicas' weights; 0: at the end only.
  DType param_dtype = DType::kF32;
  DType reduce_dtype = DType::kF32;
};

// Steps `first` to `last` of a run, counted from 1.
struct StepRange {
  int64_t first, last;

  // "A:B", or "A" for one step. Errors: kInvalidArgument (another text, A below 1, or B below A).
  static absl::StatusOr<StepRange> Parse(std::string_view text);
};

// Default of --dump-folder. Data folders are read without entries of this name.
inline constexpr const char* kDefaultDumpFolder = "weft-dump";

struct OutputOptions {
  std::string metrics_file;           // Empty: no metrics.
  std::string tensorboard_folder;     // For an event file of TensorBoard. Empty: none.
  std::string export_folder;          // Empty: no export.
  std::optional<DType> export_dtype;  // Of the exported weights: f32, bf16 or f16. Default: f32.
  // With adapters: export the model with the adapters added to its weights, rather than the adapters alone.
  bool export_merged = false;
  // Folder for the flight recorders of a run that fails because a rank is missing, because ranks disagree, or
  // because the transport fails.
  std::string dump_folder = kDefaultDumpFolder;
  std::string trace_file;  // Empty: no trace.
  // Steps of the trace, as StepRange::Parse takes them. Empty: the third to fifth that the run does, as far
  // as it has them, or else its last step.
  std::string trace_steps;
};

// Checkpoints of a run, see weft/train/checkpoint.h.
struct CheckpointConfig {
  std::string folder;  // Empty: no checkpoints.
  // Steps between checkpoints; 0: only on request and at the end. The last step is always saved.
  int64_t interval = 0;
  int64_t keep = 3;  // Newest checkpoints that remain; 0: all.
  // "auto": the newest usable checkpoint in `folder`, or a new run if there is none. A path: that checkpoint,
  // or the newest usable one in that folder. Empty: a new run.
  std::string resume;
  bool async = false;  // Write while training goes on.
};

struct TrainConfig {
  ModelOptions model;
  AttentionConfig attention;
  LoraConfig lora;
  DataOptions data;
  EvalOptions eval;
  OptimizerOptions optimizer;
  ParallelOptions parallel;
  OutputOptions output;
  CheckpointConfig checkpoint;
  uint64_t seed = 0;
  std::string config_file;  // The file of --config; outputs must not replace it.
  // The flags that were given, as a file of --config, which a run with metrics saves beside them. Empty: none
  // is saved.
  std::string given_flags;

  // Unset if neither compute nor reductions are in f16. REQUIRES: ValidateLossScale has passed.
  std::optional<LossScalerOptions> loss_scaling() const;
};

// "dense", "dsa".
std::string_view Name(AttentionKind kind);
// "constant", "linear", "cosine".
std::string_view Name(LrDecay decay);
// "adamw", "sgd", "muon".
std::string_view Name(OptimizerKind kind);
// "all", "matrices".
std::string_view Name(DecayScope scope);
// "none", "full".
std::string_view Name(ActivationCheckpoint checkpoint);
// "auto", "ulysses", "gather", "hybrid", "ring".
std::string_view Name(CpScheme scheme);

// Checks everything that does not depend on ranks or files. Errors: kInvalidArgument (names the flag, its
// value and a remedy).
absl::Status Validate(const TrainConfig& config);
// Checks the attention options, with the context-parallel options that they allow; part of the above.
absl::Status Validate(const AttentionConfig& attention, const ContextOptions& context);
// Checks the context-parallel options alone; part of the above.
absl::Status Validate(const ContextOptions& context);
// Checks the options of the loss scale, with those that it allows; part of the above.
absl::Status ValidateLossScale(const TrainConfig& config);
// Checks the options of adapters alone; part of the above.
absl::Status Validate(const LoraConfig& lora);

}  // namespace weft
