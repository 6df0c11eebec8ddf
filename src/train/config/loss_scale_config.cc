// Options of the loss scale.
#include <cmath>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "weft/train/config.h"

namespace weft {
namespace {

constexpr const char* kDynamic = "dynamic";

bool IsInF16(const ParallelOptions& parallel) {
  return parallel.param_dtype == DType::kF16 || parallel.reduce_dtype == DType::kF16;
}

// Unset if the text is not a number that a scale may be.
std::optional<float> FixedScale(const std::string& text) {
  float scale = 0.0F;
  if (!absl::SimpleAtof(text, &scale) || !std::isnormal(scale) || scale < 0) return std::nullopt;
  return scale;
}

}  // namespace

std::optional<LossScalerOptions> TrainConfig::loss_scaling() const {
  if (!IsInF16(parallel)) return std::nullopt;
  LossScalerOptions options;
  if (optimizer.loss_scale != kDynamic) options.fixed = FixedScale(optimizer.loss_scale);
  options.growth_interval = optimizer.loss_scale_growth_interval;
  return options;
}

absl::Status ValidateLossScale(const TrainConfig& config) {
  const OptimizerOptions& optimizer = config.optimizer;
  const bool given = !optimizer.loss_scale.empty();
  const bool fixed = given && optimizer.loss_scale != kDynamic;
  const OptimizerOptions defaults;
  if (fixed && !FixedScale(optimizer.loss_scale)) {
    return BadFlag("loss-scale", optimizer.loss_scale,
                   "must be dynamic, or a positive number in the range of float");
  }
  if (given && !IsInF16(config.parallel)) {
    return BadFlag("loss-scale", optimizer.loss_scale,
                   "is for gradients in f16: give --param-dtype f16 or --reduce-dtype f16, or leave it out");
  }
  const int64_t interval = optimizer.loss_scale_growth_interval;
  if (interval < 1) return BadFlag("loss-scale-growth-interval", interval, "must be at least 1");
  if (interval != defaults.loss_scale_growth_interval && (fixed || !IsInF16(config.parallel))) {
    return BadFlag(
        "loss-scale-growth-interval", interval,
        "is for a dynamic loss scale: give --loss-scale dynamic with --param-dtype f16, or leave it out");
  }
  if (optimizer.in_backward && IsInF16(config.parallel) && !fixed) {
    return BadFlag(
        "optimizer-in-backward", "true",
        "updates weights before it is known whether a gradient overflows, so it cannot skip a step, as "
        "--loss-scale dynamic does (the default in f16): give --loss-scale N, or leave "
        "--optimizer-in-backward out");
  }
  return absl::OkStatus();
}

}  // namespace weft
