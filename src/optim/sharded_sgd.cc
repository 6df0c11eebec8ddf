#include "weft/optim/sharded_sgd.h"

namespace weft {
namespace {

std::vector<SgdOptions> OptionsOfGroups(const SgdOptions& options, const std::vector<SgdParamGroup>& groups) {
  std::vector<SgdOptions> all = {options};
  for (const SgdParamGroup& group : groups) all.push_back(group.options);
  return all;
}

std::vector<std::vector<size_t>> StatesOfGroups(const std::vector<SgdOptions>& options) {
  std::vector<std::vector<size_t>> states;
  states.reserve(options.size());
  for (const SgdOptions& of_group : options) {
    states.push_back(of_group.momentum == 0 ? std::vector<size_t>() : std::vector<size_t>{0});
  }
  return states;
}

}  // namespace

ShardedSgd::ShardedSgd(absl::Span<const ShardView> shards, const SgdOptions& options,
                       const std::vector<SgdParamGroup>& param_groups)
    : ShardedOptimizer(shards, {{"momentum_buffer"}, StatesOfGroups(OptionsOfGroups(options, param_groups))},
                       [&](const Parameter& parameter) { return FirstMatch(parameter, param_groups); }),
      options_(OptionsOfGroups(options, param_groups)) {
  // On ranks with shards SgdStep would find it too, in the midst of an update that other ranks wait for.
  for (const SgdOptions& of_group : options_) {
    WEFT_CHECK(of_group.momentum != 0 || !of_group.nesterov, "ShardedSgd with nesterov needs momentum");
  }
}

void ShardedSgd::Update(size_t group, int64_t /*update*/, const OptimizerGroupStep& step,
                        absl::Span<const OptimizerSlice> slices) {
  SgdOptions options = options_[group];
  options.lr = step.lr.value_or(options.lr);
  std::vector<SgdSlice> updated;
  updated.reserve(slices.size());
  for (const OptimizerSlice& slice : slices) {
    updated.push_back({slice.param, slice.grad, slice.states[0], slice.count});
  }
  SgdStep(updated, options, step.gradient_scale);
}

}  // namespace weft
