#include "weft/train/config.h"

#include <cmath>
#include <filesystem>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "src/train/config/flag_error.h"
#include "src/train/files/model_folder.h"
#include "weft/core/status.h"
#include "weft/nn/llama_config.h"
#include "weft/sharding/policy.h"

namespace weft {
namespace {

struct Size {
  const char* flag;
  std::optional<int64_t> value;
};

struct ModelSize : Size {
  int64_t max;
};

// The sizes that define a model. The vocabulary is not among them: a preset allows it too.
std::vector<ModelSize> ModelSizes(const ModelOptions& model) {
  return {{{"layers", model.layers}, LlamaLimits::kLayers},
          {{"dim", model.dim}, LlamaLimits::kWidth},
          {{"heads", model.heads}, LlamaLimits::kWidth},
          {{"kv-heads", model.kv_heads}, LlamaLimits::kWidth},
          {{"ffn-dim", model.ffn_dim}, LlamaLimits::kFfnWidth}};
}

absl::Status RequireRange(const Size& size, int64_t min, int64_t max = kMaxCount) {
  if (!size.value.has_value() || (*size.value >= min && *size.value <= max)) {
    return absl::OkStatus();
  }
  return BadFlag(
      size.flag, *size.value,
      *size.value < min ? absl::StrCat("must be at least ", min) : absl::StrCat("must be at most ", max));
}

absl::Status RequireNotNegative(const char* flag, double value) {
  return std::isfinite(value) && value >= 0 ? absl::OkStatus()
                                            : BadFlag(flag, value, "must be 0 or a positive number");
}

absl::Status RequireBelowOne(const char* flag, double value) {
  return value >= 0 && value < 1 ? absl::OkStatus() : BadFlag(flag, value, "must be at least 0 and below 1");
}

absl::Status ValidateModelSource(const ModelOptions& model) {
  if (!model.hf_model.empty() && !model.preset.empty()) {
    return absl::InvalidArgumentError("--hf-model and --model exclude each other: give one of them");
  }
  if (!model.hf_model.empty() && model.vocab_size.has_value()) {
    return absl::InvalidArgumentError(
        "--vocab-size cannot be used with --hf-model: the folder's config.json has the size");
  }
  for (const ModelSize& size : ModelSizes(model)) {
    if (!size.value.has_value()) {
      continue;
    }
    if (!model.hf_model.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", size.flag, " cannot be used with --hf-model: the folder's config.json has the sizes"));
    }
    if (!model.preset.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", size.flag, " cannot be used with --model ", model.preset,
                       ": give all sizes without a preset, or only the preset"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSizes(const ModelOptions& model) {
  bool any = false;
  for (const ModelSize& size : ModelSizes(model)) {
    WEFT_RETURN_IF_ERROR(RequireRange(size, 1, size.max));
    any = any || size.value.has_value();
  }
  WEFT_RETURN_IF_ERROR(RequireRange({"vocab-size", model.vocab_size}, 1, LlamaLimits::kVocabulary));
  if (!any) {
    return absl::OkStatus();
  }
  if (!model.layers || !model.dim || !model.heads) {
    return absl::InvalidArgumentError("a model from sizes needs --layers, --dim and --heads: give all three");
  }
  if (*model.dim % *model.heads != 0) {
    return BadFlag("heads", *model.heads, absl::StrCat("must divide --dim ", *model.dim));
  }
  if ((*model.dim / *model.heads) % 2 != 0) {
    return BadFlag("heads", *model.heads,
                   absl::StrCat("makes heads of ", *model.dim / *model.heads,
                                " elements; rotary embedding needs an even size"));
  }
  if (model.kv_heads && *model.heads % *model.kv_heads != 0) {
    return BadFlag("kv-heads", *model.kv_heads, absl::StrCat("must divide --heads ", *model.heads));
  }
  return absl::OkStatus();
}

// Options that the update rule does not have must not be given.
absl::Status ValidateUpdateRule(const OptimizerOptions& optimizer) {
  const bool adamw = optimizer.kind == OptimizerKind::kAdamW;
  constexpr const char* kNeedsMomentum = "needs --optimizer sgd or muon";
  if (adamw && optimizer.momentum) return BadFlag("momentum", *optimizer.momentum, kNeedsMomentum);
  if (adamw && optimizer.nesterov)
    return BadFlag("nesterov", *optimizer.nesterov ? "true" : "false", kNeedsMomentum);
  if (optimizer.kind == OptimizerKind::kSgd) {
    const OptimizerOptions defaults;
    constexpr const char* kOfAdamW =
        "is an option of AdamW, which --optimizer sgd does not use: leave it out";
    if (optimizer.beta1 != defaults.beta1) return BadFlag("beta1", optimizer.beta1, kOfAdamW);
    if (optimizer.beta2 != defaults.beta2) return BadFlag("beta2", optimizer.beta2, kOfAdamW);
    if (optimizer.eps != defaults.eps) return BadFlag("eps", optimizer.eps, kOfAdamW);
  }
  if (optimizer.nesterov.value_or(false) &&
      (optimizer.kind == OptimizerKind::kSgd ? optimizer.sgd().momentum : optimizer.muon().momentum) == 0) {
    return BadFlag("nesterov", "true", "needs --momentum above 0");
  }
  if (optimizer.momentum) WEFT_RETURN_IF_ERROR(RequireBelowOne("momentum", *optimizer.momentum));
  if (optimizer.kind == OptimizerKind::kMuon) {
    return RequireNotNegative("adamw-lr", optimizer.adamw_lr.value_or(0));
  }
  if (optimizer.adamw_lr) return BadFlag("adamw-lr", *optimizer.adamw_lr, "needs --optimizer muon");
  if (optimizer.muon_lr_scale) {
    return BadFlag("muon-lr-scale", ToAbsl(Name(*optimizer.muon_lr_scale)), "needs --optimizer muon");
  }
  return absl::OkStatus();
}

absl::Status ValidateOptimizer(const OptimizerOptions& optimizer) {
  WEFT_RETURN_IF_ERROR(ValidateUpdateRule(optimizer));
  WEFT_RETURN_IF_ERROR(RequireRange({"steps", optimizer.steps}, 0));
  WEFT_RETURN_IF_ERROR(RequireNotNegative("lr", optimizer.lr));
  WEFT_RETURN_IF_ERROR(RequireBelowOne("beta1", optimizer.beta1));
  WEFT_RETURN_IF_ERROR(RequireBelowOne("beta2", optimizer.beta2));
  if (!(static_cast<float>(optimizer.eps) > 0 && std::isfinite(static_cast<float>(optimizer.eps)))) {
    return BadFlag(
        "eps", optimizer.eps,
        "must be a positive number in the range of float: AdamW divides by it where gradients are 0");
  }
  WEFT_RETURN_IF_ERROR(RequireNotNegative("weight-decay", optimizer.weight_decay));
  WEFT_RETURN_IF_ERROR(RequireRange({"warmup-steps", optimizer.warmup_steps}, 0));
  if (optimizer.warmup_steps > optimizer.steps) {
    return BadFlag("warmup-steps", optimizer.warmup_steps,
                   absl::StrCat("is more than --steps ", optimizer.steps,
                                ": the learning rate would never reach --lr; use at most that"));
  }
  if (!(optimizer.min_lr_ratio >= 0 && optimizer.min_lr_ratio <= 1)) {
    return BadFlag("min-lr-ratio", optimizer.min_lr_ratio, "must be from 0 to 1");
  }
  if (optimizer.min_lr_ratio > 0 && optimizer.lr_schedule == LrDecay::kConstant) {
    return BadFlag("min-lr-ratio", optimizer.min_lr_ratio, "needs --lr-schedule linear or cosine");
  }
  WEFT_RETURN_IF_ERROR(RequireRange({"max-skipped-steps", optimizer.max_skipped_steps}, 0));
  return RequireNotNegative("clip-grad-norm", optimizer.clip_grad_norm);
}

// Refuses options that cannot be combined with updates in backward.
absl::Status ValidateUpdatesInBackward(const TrainConfig& config) {
  const OptimizerOptions& optimizer = config.optimizer;
  if (!optimizer.in_backward) return absl::OkStatus();
  const auto refused = [](const absl::AlphaNum& why) {
    return BadFlag("optimizer-in-backward", "true", why);
  };
  if (optimizer.clip_grad_norm != 0) {
    return refused(absl::StrCat(
        "updates weights before the norm of all gradients is known, but --clip-grad-norm is ",
        optimizer.clip_grad_norm, ": give --clip-grad-norm 0, or leave --optimizer-in-backward out"));
  }
  if (optimizer.kind == OptimizerKind::kMuon) {
    return refused(
        "updates a layer at a time, but --optimizer muon exchanges matrices of all layers: use "
        "adamw or sgd");
  }
  if (optimizer.max_skipped_steps > 0) {
    return refused(
        "updates weights before all gradients are known to be finite, so it cannot skip a step: leave "
        "--max-skipped-steps out");
  }
  if (config.attention.is_sparse()) {
    return refused("is for --attention dense: the indexers' warm-up updates a part of the parameters only");
  }
  return absl::OkStatus();
}

// Refuses options that cannot be combined with Muon.
absl::Status ValidateMuon(const TrainConfig& config) {
  if (config.optimizer.kind != OptimizerKind::kMuon) return absl::OkStatus();
  if (config.parallel.shard_optimizer_over_replicas) {
    return BadFlag("shard-optimizer-over-replicas", "true",
                   "cuts matrices over replicas, but --optimizer muon needs them whole in a shard group: "
                   "leave it out, or use another optimizer");
  }
  if (config.lora.enabled()) {
    return BadFlag("optimizer", "muon",
                   "updates whole matrices, but --lora-rank and --lora-adapter train adapters: use adamw or "
                   "sgd");
  }
  return absl::OkStatus();
}

absl::Status ValidateEval(const EvalOptions& eval) {
  WEFT_RETURN_IF_ERROR(RequireRange({"eval-interval", eval.interval}, 0));
  WEFT_RETURN_IF_ERROR(RequireRange({"eval-sequences", eval.sequences}, 1));
  if (eval.paths.empty() && eval.interval > 0) {
    return BadFlag("eval-interval", eval.interval, "needs --eval-data");
  }
  if (eval.paths.empty() && eval.sequences) {
    return BadFlag("eval-sequences", *eval.sequences, "needs --eval-data");
  }
  return absl::OkStatus();
}

absl::Status ValidateAxis(const char* flag, int64_t value) {
  return value >= 1 || value == -1
             ? absl::OkStatus()
             : BadFlag(flag, value, "must be at least 1, or -1 for all remaining ranks");
}

absl::Status ValidateDtype(const char* flag, DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16
             ? absl::OkStatus()
             : BadFlag(flag, ToAbsl(Name(dtype)), "must be f32, bf16 or f16");
}

absl::Status ValidateParallel(const ParallelOptions& parallel) {
  WEFT_RETURN_IF_ERROR(ValidateAxis("dp-replicate", parallel.dp_replicate));
  WEFT_RETURN_IF_ERROR(ValidateAxis("dp-shard", parallel.dp_shard));
  if (parallel.dp_replicate == -1 && parallel.dp_shard == -1) {
    return absl::InvalidArgumentError(
        "--dp-replicate -1 and --dp-shard -1: only one of them can take the remaining ranks");
  }
  const int64_t depth = parallel.prefetch_depth.value_or(0);
  if (depth < 0 || depth > ShardingPolicy::kMaxPrefetchDepth) {
    return BadFlag("prefetch-depth", depth,
                   absl::StrCat("must be from 0 to ", ShardingPolicy::kMaxPrefetchDepth));
  }
  WEFT_RETURN_IF_ERROR(RequireRange({"check-replicas", parallel.check_replicas}, 0));
  WEFT_RETURN_IF_ERROR(ValidateDtype("param-dtype", parallel.param_dtype));
  return ValidateDtype("reduce-dtype", parallel.reduce_dtype);
}

absl::Status ValidateCheckpoint(const CheckpointConfig& checkpoint) {
  WEFT_RETURN_IF_ERROR(RequireRange({"checkpoint-interval", checkpoint.interval}, 0));
  WEFT_RETURN_IF_ERROR(RequireRange({"keep-checkpoints", checkpoint.keep}, 0));
  if (!checkpoint.folder.empty()) return absl::OkStatus();
  if (checkpoint.interval > 0)
    return BadFlag("checkpoint-interval", checkpoint.interval, "needs --checkpoint-dir");
  if (checkpoint.async) return BadFlag("checkpoint-async", "true", "needs --checkpoint-dir");
  if (checkpoint.keep != CheckpointConfig().keep)
    return BadFlag("keep-checkpoints", checkpoint.keep, "needs --checkpoint-dir");
  if (checkpoint.resume == "auto") {
    return BadFlag("resume", "auto", "needs --checkpoint-dir, the folder in which to look; or give a path");
  }
  return absl::OkStatus();
}

absl::Status ValidateExport(const OutputOptions& output, const LoraConfig& lora) {
  if (output.export_merged && (output.export_folder.empty() || !lora.enabled())) {
    return BadFlag(
        "export-merged", "true",
        output.export_folder.empty() ? "needs --export-hf" : "needs --lora-rank or --lora-adapter");
  }
  if (!output.export_dtype) return absl::OkStatus();
  const DType dtype = *output.export_dtype;
  if (output.export_folder.empty()) return BadFlag("export-dtype", ToAbsl(Name(dtype)), "needs --export-hf");
  return ValidateDtype("export-dtype", dtype);
}

absl::Status ValidateTrace(const OutputOptions& output, int64_t steps) {
  if (output.trace_steps.empty()) return absl::OkStatus();
  if (output.trace_file.empty()) return BadFlag("trace-steps", output.trace_steps, "needs --trace");
  const absl::StatusOr<StepRange> range = StepRange::Parse(output.trace_steps);
  if (!range.ok()) return BadFlag("trace-steps", output.trace_steps, range.status().message());
  if (range->last <= steps) return absl::OkStatus();
  return BadFlag("trace-steps", output.trace_steps,
                 absl::StrCat("the run ends at step ", steps, " (--steps); name steps up to it"));
}

}  // namespace

std::string ModelOptions::hf_folder() const {
  if (hf_model.empty() || hf_weights()) return hf_model;
  const std::string parent = std::filesystem::path(hf_model).parent_path();
  return parent.empty() ? "." : parent;
}

bool ModelOptions::hf_weights() const {
  return !hf_model.empty() && std::filesystem::path(hf_model).filename() != kConfigFile;
}

absl::StatusOr<StepRange> StepRange::Parse(std::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(ToAbsl(text), ':');
  StepRange range{};
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &range.first) ||
      !absl::SimpleAtoi(parts.back(), &range.last)) {
    return absl::InvalidArgumentError("must be two steps, as in 3:5, or one");
  }
  if (range.first < 1) return absl::InvalidArgumentError("steps are counted from 1");
  if (range.last < range.first) return absl::InvalidArgumentError("the last step comes before the first");
  return range;
}

std::string_view Name(LrDecay decay) {
  switch (decay) {
    case LrDecay::kConstant:
      return "constant";
    case LrDecay::kLinear:
      return "linear";
    case LrDecay::kCosine:
      return "cosine";
  }
  return "?";
}

std::string_view Name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kMuon:
      return "muon";
  }
  return "?";
}

AdamWOptions OptimizerOptions::adamw() const {
  return {adamw_lr.value_or(lr), beta1, beta2, eps, weight_decay};
}

SgdOptions OptimizerOptions::sgd() const {
  return {lr, momentum.value_or(SgdOptions().momentum), weight_decay,
          nesterov.value_or(SgdOptions().nesterov)};
}

MuonOptions OptimizerOptions::muon() const {
  MuonOptions options;
  options.lr = lr;
  options.momentum = momentum.value_or(options.momentum);
  options.nesterov = nesterov.value_or(options.nesterov);
  options.weight_decay = weight_decay;
  options.lr_scale = muon_lr_scale.value_or(options.lr_scale);
  return options;
}

std::string_view Name(DecayScope scope) { return scope == DecayScope::kAll ? "all" : "matrices"; }

std::string_view Name(ActivationCheckpoint checkpoint) {
  return checkpoint == ActivationCheckpoint::kNone ? "none" : "full";
}

absl::Status Validate(const TrainConfig& config) {
  WEFT_RETURN_IF_ERROR(ValidateModelSource(config.model));
  WEFT_RETURN_IF_ERROR(ValidateSizes(config.model));
  WEFT_RETURN_IF_ERROR(RequireRange({"seq-len", config.data.seq_len}, 1));
  WEFT_RETURN_IF_ERROR(RequireRange({"batch-size", config.data.batch_size}, 1));
  WEFT_RETURN_IF_ERROR(RequireRange({"grad-accum", config.data.grad_accum}, 1));
  WEFT_RETURN_IF_ERROR(RequireRange({"document-separator", config.data.document_separator}, 0));
  WEFT_RETURN_IF_ERROR(ValidateEval(config.eval));
  WEFT_RETURN_IF_ERROR(ValidateOptimizer(config.optimizer));
  if (config.optimizer.steps == 0 && config.eval.paths.empty()) {
    return BadFlag("steps", 0, "evaluates alone: give --eval-data, or at least one step");
  }
  WEFT_RETURN_IF_ERROR(ValidateParallel(config.parallel));
  WEFT_RETURN_IF_ERROR(ValidateExport(config.output, config.lora));
  WEFT_RETURN_IF_ERROR(ValidateTrace(config.output, config.optimizer.steps));
  WEFT_RETURN_IF_ERROR(ValidateCheckpoint(config.checkpoint));
  WEFT_RETURN_IF_ERROR(Validate(config.parallel.context));
  WEFT_RETURN_IF_ERROR(Validate(config.lora));
  if (config.lora.enabled() && config.attention.is_sparse()) {
    return BadFlag("attention", ToAbsl(Name(config.attention.kind)),
                   "trains its indexers, which --lora-rank and --lora-adapter would freeze: use dense");
  }
  WEFT_RETURN_IF_ERROR(ValidateMuon(config));
  WEFT_RETURN_IF_ERROR(ValidateUpdatesInBackward(config));
  WEFT_RETURN_IF_ERROR(ValidateLossScale(config));
  return Validate(config.attention, config.parallel.context);
}

}  // namespace weft
