// A local tensor and the exchanges that were started for it.
#pragma once

#include <vector>

#include "weft/context_parallel/pending_tensor.h"
#include "weft/core/tensor.h"

namespace weft {

struct LaunchedTensor {
  Tensor local;
  // In order, each submitted after the one before, such as the exchange of heads and the gather or first ring
  // hop that follows it. Empty if the tensor is used on this rank only.
  std::vector<PendingTensor> stages = {};
};

}  // namespace weft
