// Learning-rate schedule: linear warm-up, then a constant rate, or linear or cosine decay to a floor.
//
// Pure. Thread safety: a value.
#pragma once

#include <cstdint>

namespace weft {

enum class LrDecay : uint8_t { kConstant, kLinear, kCosine };

struct LrSchedule {
  double lr = 3e-4;
  LrDecay decay = LrDecay::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  double min_ratio = 0.0;  // The floor as a fraction of `lr`.

  // The learning rate of update `step`, counted from 1. Up to warmup_steps it is lr * (step / warmup_steps).
  // After that, with x = (step - warmup_steps) / max(1, total_steps - warmup_steps), at most 1:
  //   kConstant  lr
  //   kLinear    lr * (1 - (1 - min_ratio) * x)
  //   kCosine    lr * (min_ratio + (1 - min_ratio) * (1 + cos(pi * x)) / 2)
  double At(int64_t step) const;
};

}  // namespace weft
