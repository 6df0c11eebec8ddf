#include "weft/optim/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

bool HasAtMostOneDim(const Parameter& parameter) { return parameter.shape.size() <= 1; }

std::function<bool(const Parameter&)> NameContains(std::vector<std::string> words) {
  return [words = std::move(words)](const Parameter& parameter) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return parameter.name.find(word) != std::string::npos;
    });
  };
}

ShardedOptimizer::ShardedOptimizer(absl::Span<const ShardView> shards, Layout layout,
                                   const std::function<size_t(const Parameter&)>& group_of)
    : layout_(std::move(layout)) {
  WEFT_CHECK(layout_.state_names.size() <= OptimizerSlice::kMaxStates, "too many states of an optimizer");
  for (const ShardView& shard : shards) {
    entries_.push_back({shard.parameter, shard.piece, group_of(*shard.parameter), /*exists=*/false, {}});
    if (shard.parameter->requires_grad) AddStates(entries_.back());
  }
}

void ShardedOptimizer::AddStates(Entry& entry) {
  if (std::exchange(entry.exists, true)) return;
  for (const size_t state : layout_.states_of_groups[entry.group]) {
    entry.states[state].resize(static_cast<size_t>(entry.piece.elements()));
  }
}

void ShardedOptimizer::AddMissingStates(size_t first, absl::Span<const ShardView> shards) {
  for (size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].grad != nullptr) AddStates(entries_[first + i]);
  }
}

void ShardedOptimizer::set_steps(int64_t steps) {
  steps_ = steps;
  for (Entry& entry : entries_) entry.steps = steps;
}

std::vector<int64_t> ShardedOptimizer::StepsOfShards() const {
  std::vector<int64_t> steps;
  for (const Entry& entry : entries_) steps.push_back(entry.steps);
  return steps;
}

void ShardedOptimizer::SetStepsOfShards(absl::Span<const int64_t> steps) {
  WEFT_CHECK(steps.size() == entries_.size(), "SetStepsOfShards takes one number for each shard");
  for (size_t i = 0; i < steps.size(); ++i) entries_[i].steps = steps[i];
}

absl::Status ShardedOptimizer::CheckStep(absl::Span<const ShardView> shards,
                                         absl::Span<const OptimizerGroupStep> groups) const {
  WEFT_CHECK(groups.size() == group_count(), "a step takes one treatment for each parameter group");
  for (const OptimizerGroupStep& group : groups) {
    if (std::isfinite(group.gradient_scale)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("gradient_scale is ", group.gradient_scale,
                     ", but it must be finite: skip the step if the norm of the gradients is not finite"));
  }
  WEFT_RETURN_IF_ERROR(CheckCount(shards.size()));
  return CheckShards(0, shards);
}

absl::Status ShardedOptimizer::CheckCount(size_t shards) const {
  if (shards == entries_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an optimizer of ", entries_.size(), " shards was given ",
                                                 shards, " shards; pass all shards of its model"));
}

absl::Status ShardedOptimizer::CheckShards(size_t first, absl::Span<const ShardView> shards) const {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Entry& entry = entries_[first + i];
    if (shards[i].parameter == entry.parameter && shards[i].piece.start == entry.piece.start &&
        shards[i].elements() == entry.piece.elements()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", first + i, " (of '", shards[i].parameter->name,
                     "') is not the one given to the constructor (of '", entry.parameter->name,
                     "'); pass the shards of the same model in the same order"));
  }
  return absl::OkStatus();
}

std::vector<OptimizerGroupStep> ShardedOptimizer::ForAll(double gradient_scale) const {
  return std::vector<OptimizerGroupStep>(group_count(), {.gradient_scale = gradient_scale});
}

absl::Status ShardedOptimizer::Step(absl::Span<const ShardView> shards, double gradient_scale) {
  return Step(shards, ForAll(gradient_scale));
}

absl::Status ShardedOptimizer::Step(ShardedModel& model, double gradient_scale) {
  return Step(model, ForAll(gradient_scale));
}

absl::Status ShardedOptimizer::Step(absl::Span<const ShardView> shards,
                                    absl::Span<const OptimizerGroupStep> groups) {
  WEFT_RETURN_IF_ERROR(CheckStep(shards, groups));
  AddMissingStates(0, shards);
  WEFT_RETURN_IF_ERROR(BeforeUpdates(shards, groups));
  ++steps_;
  UpdateFrom(0, shards, groups);
  return absl::OkStatus();
}

absl::Status ShardedOptimizer::Step(ShardedModel& model, absl::Span<const OptimizerGroupStep> groups) {
  const std::vector<ShardView> all = model.Shards();
  WEFT_RETURN_IF_ERROR(CheckStep(all, groups));
  WEFT_RETURN_IF_ERROR(model.CheckGradientsReduced());
  AddMissingStates(0, all);
  WEFT_RETURN_IF_ERROR(BeforeUpdates(all, groups));
  ++steps_;
  size_t first = 0;
  return model.UpdateShards([&](absl::Span<const ShardView> shards) {
    UpdateFrom(first, shards, groups);
    first += shards.size();
    return absl::OkStatus();
  });
}

absl::StatusOr<ShardUpdate> ShardedOptimizer::BeginStepInBackward(const ShardedModel& model,
                                                                  std::vector<OptimizerGroupStep> groups) {
  if (!updates_groups_alone()) {
    return absl::UnimplementedError(
        "this optimizer exchanges matrices between its ranks: update after the backward instead");
  }
  WEFT_RETURN_IF_ERROR(CheckStep(model.Shards(), groups));
  ++steps_;
  return ShardUpdate([this, groups = std::move(groups)](absl::Span<const ShardView> shards) -> absl::Status {
    if (shards.empty()) return absl::OkStatus();
    const auto first = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.parameter == shards[0].parameter && entry.piece.start == shards[0].piece.start;
    });
    const auto number = static_cast<size_t>(first - entries_.begin());
    if (number + shards.size() > entries_.size()) return CheckCount(number + shards.size());
    WEFT_RETURN_IF_ERROR(CheckShards(number, shards));
    AddMissingStates(number, shards);
    UpdateFrom(number, shards, groups);
    return absl::OkStatus();
  });
}

void ShardedOptimizer::UpdateFrom(size_t first, absl::Span<const ShardView> shards,
                                  absl::Span<const OptimizerGroupStep> groups) {
  std::map<std::pair<size_t, int64_t>, std::vector<OptimizerSlice>> slices;  // By group and update.
  for (size_t i = 0; i < shards.size(); ++i) {
    Entry& entry = entries_[first + i];
    if (shards[i].grad == nullptr || groups[entry.group].frozen) continue;
    OptimizerSlice slice{entry.parameter,      shards[i].data, shards[i].grad, {},
                         shards[i].elements(), shards[i].cast};
    for (const size_t state : layout_.states_of_groups[entry.group]) {
      slice.states[state] = entry.states[state].data();
    }
    slices[{entry.group, ++entry.steps}].push_back(slice);
  }
  for (const auto& [key, updated] : slices) Update(key.first, key.second, groups[key.first], updated);
}

std::vector<ShardView> ShardedOptimizer::State(size_t state) {
  WEFT_CHECK(state < state_names().size(), "an optimizer has no state of this number");
  std::vector<ShardView> views;
  for (Entry& entry : entries_) {
    const std::vector<size_t>& states = layout_.states_of_groups[entry.group];
    if (!entry.exists || std::find(states.begin(), states.end(), state) == states.end()) continue;
    views.push_back({entry.parameter, entry.piece, entry.states[state].data(), nullptr});
  }
  return views;
}

}  // namespace weft
