#include "weft/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {

double LrSchedule::At(int64_t step) const {
  if (step <= warmup_steps) return lr * (static_cast<double>(step) / static_cast<double>(warmup_steps));
  const int64_t decay_steps = std::max<int64_t>(1, total_steps - warmup_steps);
  const double x = std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
  switch (decay) {
    case LrDecay::kConstant:
      return lr;
    case LrDecay::kLinear:
      return lr * (1.0 - (1.0 - min_ratio) * x);
    case LrDecay::kCosine:
      return lr * (min_ratio + (1.0 - min_ratio) * (1.0 + std::cos(std::numbers::pi * x)) / 2.0);
  }
  return lr;
}

}  // namespace weft
