#include "weft/optim/sharded_adamw.h"

#include <algorithm>
#include <map>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

// Index of the parameter's options in ShardedAdamW::options(): 0 if no parameter group matches.
size_t OptionsIndexOf(const Parameter& parameter, const std::vector<AdamWParamGroup>& param_groups) {
  const auto found = std::find_if(param_groups.begin(), param_groups.end(),
                                  [&](const AdamWParamGroup& group) { return group.matches(parameter); });
  return found == param_groups.end() ? 0 : static_cast<size_t>(found - param_groups.begin()) + 1;
}

}  // namespace

bool HasAtMostOneDim(const Parameter& parameter) { return parameter.shape.size() <= 1; }

std::function<bool(const Parameter&)> NameContains(std::vector<std::string> words) {
  return [words = std::move(words)](const Parameter& parameter) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return parameter.name.find(word) != std::string::npos;
    });
  };
}

ShardedAdamW::ShardedAdamW(absl::Span<const ShardView> shards, const AdamWOptions& options,
                           const std::vector<AdamWParamGroup>& param_groups)
    : options_{options} {
  for (const AdamWParamGroup& group : param_groups) options_.push_back(group.options);
  for (const ShardView& shard : shards) {
    const bool exists = shard.parameter->requires_grad;
    const auto elements = exists ? static_cast<size_t>(shard.elements()) : 0;
    moments_.push_back({shard.parameter, shard.piece, OptionsIndexOf(*shard.parameter, param_groups), exists,
                        std::vector<float>(elements), std::vector<float>(elements)});
  }
}

void ShardedAdamW::set_steps(int64_t steps) {
  steps_ = steps;
  for (Moments& moments : moments_) moments.steps = steps;
}

std::vector<int64_t> ShardedAdamW::StepsOfShards() const {
  std::vector<int64_t> steps;
  for (const Moments& moments : moments_) steps.push_back(moments.steps);
  return steps;
}

void ShardedAdamW::SetStepsOfShards(absl::Span<const int64_t> steps) {
  WEFT_CHECK(steps.size() == moments_.size(), "SetStepsOfShards takes one number for each shard");
  for (size_t i = 0; i < steps.size(); ++i) moments_[i].steps = steps[i];
}

absl::Status ShardedAdamW::CheckCount(size_t shards) const {
  if (shards == moments_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an optimizer of ", moments_.size(), " shards was given ",
                                                 shards, " shards; pass all shards of its model"));
}

absl::Status ShardedAdamW::CheckShards(size_t first, absl::Span<const ShardView> shards) const {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Moments& moments = moments_[first + i];
    if (shards[i].parameter == moments.parameter && shards[i].piece.start == moments.piece.start &&
        shards[i].elements() == moments.piece.elements()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", first + i, " (of '", shards[i].parameter->name,
                     "') is not the one given to the constructor (of '", moments.parameter->name,
                     "'); pass the shards of the same model in the same order"));
  }
  return absl::OkStatus();
}

std::vector<AdamWGroupStep> ShardedAdamW::ForAll(double gradient_scale) const {
  return std::vector<AdamWGroupStep>(options_.size(), {.gradient_scale = gradient_scale});
}

absl::Status ShardedAdamW::Step(absl::Span<const ShardView> shards, double gradient_scale) {
  return Step(shards, ForAll(gradient_scale));
}

absl::Status ShardedAdamW::Step(ShardedModel& model, double gradient_scale) {
  return Step(model, ForAll(gradient_scale));
}

absl::Status ShardedAdamW::Step(absl::Span<const ShardView> shards, absl::Span<const AdamWGroupStep> groups) {
  WEFT_CHECK(groups.size() == options_.size(), "Step takes one treatment for each entry of options()");
  if (absl::Status status = CheckCount(shards.size()); !status.ok()) return status;
  if (absl::Status status = CheckShards(0, shards); !status.ok()) return status;
  ++steps_;
  Update(0, shards, groups);
  return absl::OkStatus();
}

absl::Status ShardedAdamW::Step(ShardedModel& model, absl::Span<const AdamWGroupStep> groups) {
  WEFT_CHECK(groups.size() == options_.size(), "Step takes one treatment for each entry of options()");
  const std::vector<ShardView> all = model.Shards();
  if (absl::Status status = CheckCount(all.size()); !status.ok()) return status;
  if (absl::Status status = CheckShards(0, all); !status.ok()) return status;
  if (absl::Status status = model.CheckGradientsReduced(); !status.ok()) return status;
  ++steps_;
  size_t first = 0;
  return model.UpdateShards([&](absl::Span<const ShardView> shards) {
    Update(first, shards, groups);
    first += shards.size();
    return absl::OkStatus();
  });
}

void ShardedAdamW::Update(size_t first, absl::Span<const ShardView> shards,
                          absl::Span<const AdamWGroupStep> groups) {
  std::map<std::pair<size_t, int64_t>, std::vector<AdamWSlice>> slices;  // By options and number of updates.
  for (size_t i = 0; i < shards.size(); ++i) {
    Moments& moments = moments_[first + i];
    if (shards[i].grad == nullptr || groups[moments.options].frozen) continue;
    if (!std::exchange(moments.exists, true)) {
      moments.first.resize(static_cast<size_t>(shards[i].elements()));
      moments.second.resize(static_cast<size_t>(shards[i].elements()));
    }
    slices[{moments.options, ++moments.steps}].push_back(
        {shards[i].data, shards[i].grad, moments.first.data(), moments.second.data(), shards[i].elements()});
  }
  for (const auto& [key, updated] : slices) {
    AdamWStep(updated, options_[key.first], key.second, groups[key.first].gradient_scale);
  }
}

std::vector<ShardView> ShardedAdamW::MomentViews(std::vector<float> Moments::*moment) {
  std::vector<ShardView> views;
  for (Moments& moments : moments_) {
    if (!moments.exists) continue;
    views.push_back({moments.parameter, moments.piece, (moments.*moment).data(), nullptr});
  }
  return views;
}

}  // namespace weft
