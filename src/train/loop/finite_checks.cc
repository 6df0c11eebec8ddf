#include "src/train/loop/finite_checks.h"

#include <cmath>
#include <string>

#include <absl/strings/str_cat.h>

#include "weft/core/dtype.h"
#include "weft/core/reproducible_sum.h"
#include "weft/train/progress.h"

namespace weft {
namespace {

constexpr const char* kScaleRemedy = "; or a smaller --loss-scale, or --param-dtype bf16";

// Updates in backward exclude clipping.
const char* RemedyOf(const OptimizerOptions& optimizer) {
  if (optimizer.in_backward) return ": use a smaller --lr, or more --warmup-steps";
  return optimizer.clip_grad_norm > 0
             ? ": use a smaller --lr, more --warmup-steps, or a smaller --clip-grad-norm"
             : ": use a smaller --lr, more --warmup-steps, or a --clip-grad-norm above 0";
}

absl::Status NotFinite(int64_t step, const absl::AlphaNum& what, const OptimizerOptions& optimizer,
                       const char* more_remedies = "") {
  return absl::OutOfRangeError(absl::StrCat("step ", step, ": ", what, RemedyOf(optimizer), more_remedies));
}

std::string EvalLossIs(double loss) {
  return absl::StrCat("the loss on --eval-data is ", loss, ", but it must be finite");
}

const char* SourceOfWeights(const TrainConfig& config) {
  if (!config.checkpoint.resume.empty()) return "--resume";
  return config.model.hf_model.empty() ? "the new model" : "--hf-model";
}

// The weights after steps that are not finite.
std::string Consequence(const OptimizerOptions& optimizer, int64_t skipped) {
  if (optimizer.in_backward) return "layers were updated before that was known";
  return absl::StrCat(skipped, skipped == 1 ? " step was" : " steps were",
                      " skipped, and --max-skipped-steps allows ", optimizer.max_skipped_steps);
}

}  // namespace

absl::Status CheckEvalLoss(int64_t step, double loss, const OptimizerOptions& optimizer) {
  if (std::isfinite(loss)) return absl::OkStatus();
  return NotFinite(step, EvalLossIs(loss), optimizer);
}

absl::Status CheckLossOfGivenWeights(int64_t step, double loss, const TrainConfig& config) {
  if (std::isfinite(loss)) return absl::OkStatus();
  const bool is_f16 = config.parallel.param_dtype == DType::kF16;
  return absl::OutOfRangeError(
      absl::StrCat("step ", step, ": ", EvalLossIs(loss), ": check the weights of ", SourceOfWeights(config),
                   is_f16 ? ", or use --param-dtype bf16 or f32, which have larger values than f16" : ""));
}

absl::Status CheckFinite(const StepMetrics& metrics, const OptimizerOptions& optimizer) {
  if (metrics.counted_skips > optimizer.max_skipped_steps) {
    return NotFinite(metrics.step,
                     absl::StrCat(LossesAndNorms(metrics), ", but ", metrics.indexers ? "all" : "both",
                                  " must be finite; ", Consequence(optimizer, metrics.counted_skips)),
                     optimizer, metrics.loss_scale ? kScaleRemedy : "");
  }
  return metrics.eval_loss ? CheckEvalLoss(metrics.step, *metrics.eval_loss, optimizer) : absl::OkStatus();
}

absl::Status CheckWeightsFinite(const std::vector<ShardView>& shards, int64_t step,
                                const OptimizerOptions& optimizer) {
  for (const ShardView& shard : shards) {
    if (std::isfinite(MaxMagnitude(shard.data, shard.elements()))) continue;
    return NotFinite(
        step, absl::StrCat("the weights are not finite after the update ('", shard.parameter->name, "')"),
        optimizer);
  }
  return absl::OkStatus();
}

}  // namespace weft
