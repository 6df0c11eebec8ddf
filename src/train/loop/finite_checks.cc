#include "src/train/loop/finite_checks.h"

#include <cmath>

#include <absl/strings/str_cat.h>

#include "weft/core/reproducible_sum.h"
#include "weft/train/progress.h"

namespace weft {
namespace {

constexpr const char* kRemedy = ": use a smaller --lr, more --warmup-steps, or a smaller --clip-grad-norm";

constexpr const char* kScaleRemedy = "; or a smaller --loss-scale, or --param-dtype bf16";

absl::Status NotFinite(int64_t step, const absl::AlphaNum& what, const char* more_remedies = "") {
  return absl::OutOfRangeError(absl::StrCat("step ", step, ": ", what, kRemedy, more_remedies));
}

}  // namespace

absl::Status CheckEvalLoss(int64_t step, double loss) {
  if (std::isfinite(loss)) return absl::OkStatus();
  return NotFinite(step, absl::StrCat("the loss on --eval-data is ", loss, ", but it must be finite"));
}

absl::Status CheckFinite(const StepMetrics& metrics, int64_t max_skipped_steps) {
  const int64_t skipped = metrics.counted_skips;
  if (skipped > max_skipped_steps) {
    return NotFinite(metrics.step,
                     absl::StrCat(LossesAndNorms(metrics), ", but ", metrics.indexers ? "all" : "both",
                                  " must be finite; ", skipped, skipped == 1 ? " step was" : " steps were",
                                  " skipped, and --max-skipped-steps allows ", max_skipped_steps),
                     metrics.loss_scale ? kScaleRemedy : "");
  }
  return metrics.eval_loss ? CheckEvalLoss(metrics.step, *metrics.eval_loss) : absl::OkStatus();
}

absl::Status CheckWeightsFinite(const std::vector<ShardView>& shards, int64_t step) {
  for (const ShardView& shard : shards) {
    if (std::isfinite(MaxMagnitude(shard.data, shard.elements()))) continue;
    return NotFinite(
        step, absl::StrCat("the weights are not finite after the update ('", shard.parameter->name, "')"));
  }
  return absl::OkStatus();
}

}  // namespace weft
