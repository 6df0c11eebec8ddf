// The learning rate over a run: a linear warm-up, then constant, or a line or half a cosine down to a floor.
#pragma once

#include <cstdint>

namespace weft {

enum class LrDecay : uint8_t { kConstant, kLinear, kCosine };

struct LrSchedule {
  double lr = 3e-4;
  LrDecay decay = LrDecay::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  double min_ratio = 0.0;  // The floor, as a part of `lr`.

  // At update `step`, from 1: lr step / warmup_steps up to the end of the warm-up; then lr times, with x
  // rising to 1 at total_steps, 1, 1 - (1 - min_ratio) x, or min_ratio + (1 - min_ratio)(1 + cos(pi x)) / 2.
  // Past total_steps, as there.
  double At(int64_t step) const;
};

}  // namespace weft
