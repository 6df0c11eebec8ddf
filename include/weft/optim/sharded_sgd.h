// SGD with momentum over the shards that this rank owns.
//
//   ShardedSgd optimizer(model->Shards(), {.lr = 0.1, .momentum = 0.9});
//
// Its state is "momentum_buffer"; parameter groups without momentum have none.
//
// Thread safety, lifetime: those of ShardedOptimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/optim/sgd.h"
#include "weft/optim/sharded_optimizer.h"

namespace weft {

using SgdParamGroup = ParamGroupOf<SgdOptions>;

class ShardedSgd : public ShardedOptimizer {
 public:
  // The options of a parameter are those of the first of `param_groups` that matches it, otherwise `options`.
  // REQUIRES: nesterov comes with momentum, in each of them.
  ShardedSgd(absl::Span<const ShardView> shards, const SgdOptions& options,
             const std::vector<SgdParamGroup>& param_groups = {});

 private:
  void Update(size_t group, int64_t update, const OptimizerGroupStep& step,
              absl::Span<const OptimizerSlice> slices) override;

  std::vector<SgdOptions> options_;  // By group.
};

}  // namespace weft
