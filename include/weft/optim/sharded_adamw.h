// AdamW over the shards that this rank owns.
//
//   ShardedAdamW optimizer(model->Shards(), {.lr = 1e-3, .weight_decay = 0.1},
//                          {{HasAtMostOneDim, {.lr = 1e-3, .weight_decay = 0}}});
//   ...
//   optimizer.Step(*model, norm.factor);
//
// Thread safety, lifetime: those of ShardedOptimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "weft/optim/adamw.h"
#include "weft/optim/sharded_optimizer.h"

namespace weft {

using AdamWParamGroup = ParamGroupOf<AdamWOptions>;

class ShardedAdamW : public ShardedOptimizer {
 public:
  // The options of a parameter are those of the first of `param_groups` that matches it, otherwise `options`.
  ShardedAdamW(absl::Span<const ShardView> shards, const AdamWOptions& options,
               const std::vector<AdamWParamGroup>& param_groups = {});

  // The constructor's options, followed by those of each parameter group. May be changed between steps, for
  // example by a learning-rate schedule.
  absl::Span<AdamWOptions> options() { return absl::MakeSpan(options_); }

  // The states "exp_avg" and "exp_avg_sq".
  std::vector<ShardView> FirstMoments() { return State(0); }
  std::vector<ShardView> SecondMoments() { return State(1); }

 private:
  void Update(size_t group, int64_t update, const OptimizerGroupStep& step,
              absl::Span<const OptimizerSlice> slices) override;

  std::vector<AdamWOptions> options_;  // By group.
};

// AdamWStep on slices whose moments are the states `first_state` and the next. For rules that leave some of
// the parameters to AdamW.
void UpdateByAdamW(AdamWOptions options, int64_t update, const OptimizerGroupStep& step,
                   absl::Span<const OptimizerSlice> slices, size_t first_state);

}  // namespace weft
