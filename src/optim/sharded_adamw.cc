#include "weft/optim/sharded_adamw.h"

namespace weft {

void UpdateByAdamW(AdamWOptions options, int64_t update, const OptimizerGroupStep& step,
                   absl::Span<const OptimizerSlice> slices, size_t first_state) {
  options.lr = step.lr.value_or(options.lr);
  std::vector<AdamWSlice> updated;
  updated.reserve(slices.size());
  for (const OptimizerSlice& slice : slices) {
    updated.push_back(
        {slice.param, slice.grad, slice.states[first_state], slice.states[first_state + 1], slice.count});
    if (slice.cast == nullptr || slice.cast->dtype != DType::kBF16) continue;
    updated.back().cast = static_cast<BF16*>(slice.cast->data);
    slice.cast->is_written = true;
  }
  AdamWStep(updated, options, update, step.gradient_scale);
}

ShardedAdamW::ShardedAdamW(absl::Span<const ShardView> shards, const AdamWOptions& options,
                           const std::vector<AdamWParamGroup>& param_groups)
    : ShardedOptimizer(
          shards,
          {{"exp_avg", "exp_avg_sq"}, std::vector<std::vector<size_t>>(param_groups.size() + 1, {0, 1})},
          [&](const Parameter& parameter) { return FirstMatch(parameter, param_groups); }),
      options_{options} {
  for (const AdamWParamGroup& group : param_groups) options_.push_back(group.options);
}

void ShardedAdamW::Update(size_t group, int64_t update, const OptimizerGroupStep& step,
                          absl::Span<const OptimizerSlice> slices) {
  UpdateByAdamW(options_[group], update, step, slices, 0);
}

}  // namespace weft
