// Optimizer over the shards that this rank owns: the part that is alike for all update rules. It has states
// for each shard of a parameter with requires_grad, options by parameter group as in torch.optim, numbers of
// updates, and states that can be saved and loaded by parameter name.
//
// A subclass is an update rule: ShardedAdamW, ShardedSgd, ShardedMuon.
//
// A step may treat each parameter group differently: give it a gradient scale or a learning rate of its own,
// or freeze it.
//
// Thread safety: none; one thread drives an optimizer.
// Lifetime: the parameters must outlive the optimizer. It keeps no reference to the shards' memory after a
// call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/sharding/fully_shard.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// Options of an update rule for the parameters that satisfy a predicate (an entry of torch.optim's
// param_groups; unrelated to the parameter groups of sharding).
template <typename Options>
struct ParamGroupOf {
  std::function<bool(const Parameter&)> matches;
  Options options;
};

// The number of the first group that matches the parameter, counted from 1; 0 if none does.
template <typename Options>
size_t FirstMatch(const Parameter& parameter, const std::vector<ParamGroupOf<Options>>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].matches(parameter)) return i + 1;
  }
  return 0;
}

// One step's treatment of the parameters of a parameter group.
struct OptimizerGroupStep {
  double gradient_scale = 1.0;  // The clipping factor; multiplies the gradients.
  // The step skips the parameters: they do not decay, and their states and numbers of updates stay the same.
  bool frozen = false;
  std::optional<double> lr = std::nullopt;  // Unset: that of the group's options.
};

// Contiguous elements of one parameter, as an update rule sees them.
struct OptimizerSlice {
  static constexpr size_t kMaxStates = 3;

  const Parameter* parameter;
  float* param;
  float* grad;
  std::array<float*, kMaxStates> states;  // In the order of state_names(); null where the group has none.
  int64_t count;
  ShardCast* cast = nullptr;  // As in ShardView.
};

// True if a parameter has at most one dim, as norm weights and biases have. Weight decay is often disabled
// for these.
bool HasAtMostOneDim(const Parameter& parameter);
// Returns a predicate that is true if the parameter's name contains one of `words`.
std::function<bool(const Parameter&)> NameContains(std::vector<std::string> words);

class ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Applies one update to the shards that have a gradient, in a parameter group that is not frozen. `shards`
  // must be those of the constructor; gradients and the addresses of data may differ. `gradient_scale`
  // multiplies the gradients. A rule may overwrite the gradients, as its header says.
  // Errors: kInvalidArgument (not the shards of the constructor, a scale that is not finite; nothing was
  // updated), and those of the rule's communication: after these, load the states on all ranks, as some may
  // have changed.
  absl::Status Step(absl::Span<const ShardView> shards, double gradient_scale = 1.0);
  // The same with one treatment for each parameter group. REQUIRES: as many as there are groups.
  absl::Status Step(absl::Span<const ShardView> shards, absl::Span<const OptimizerGroupStep> groups);
  // The same for all shards of the model. Updated shards are communicated while later ones are updated: see
  // ShardedModel::UpdateShards.
  // Errors: also those of ShardedModel::CheckGradientsReduced; then nothing was updated or counted.
  absl::Status Step(ShardedModel& model, double gradient_scale = 1.0);
  absl::Status Step(ShardedModel& model, absl::Span<const OptimizerGroupStep> groups);

  // Begins a step whose updates happen in backward, and counts it. Returns the update for
  // ShardedModel::BeginUpdatesInBackward, which takes the shards of one group of the model at a time.
  // REQUIRES: `groups` as in Step. Lifetime: the optimizer must outlive the update.
  // Errors: kInvalidArgument (as Step), kUnimplemented (the rule needs the
  // gradients of several groups at once).
  absl::StatusOr<ShardUpdate> BeginStepInBackward(const ShardedModel& model,
                                                  std::vector<OptimizerGroupStep> groups);

  size_t group_count() const { return layout_.states_of_groups.size(); }

  // The optimizer's states by name, as in torch.optim: "exp_avg", …. Each is a list of shards of parameters.
  // In these ShardViews `data` is the state and `grad` is null, so that states are saved and loaded as
  // weights are. A parameter whose group does not have the state is left out, and so is one that had no
  // requires_grad in the constructor, until its first gradient. States start at zero. To load states, make
  // the optimizer with requires_grad as it was when they were saved: a loader that fills these views does not
  // read the states of a parameter that is left out.
  const std::vector<std::string>& state_names() const { return layout_.state_names; }
  // REQUIRES: state < state_names().size().
  std::vector<ShardView> State(size_t state);

  // Numbers of updates. As in torch.optim, those of a parameter leave out the steps in which it had no
  // gradient or was frozen. The number is the same on all ranks that hold a part of the parameter.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps);               // Those of the optimizer and of every parameter.
  std::vector<int64_t> StepsOfShards() const;  // In the order of the constructor's shards.
  // REQUIRES: as many as there are shards.
  void SetStepsOfShards(absl::Span<const int64_t> steps);

 protected:
  struct Layout {
    std::vector<std::string> state_names;               // At most OptimizerSlice::kMaxStates.
    std::vector<std::vector<size_t>> states_of_groups;  // By group: indices in state_names.
  };
  // `group_of`: the number of a parameter's group.
  ShardedOptimizer(absl::Span<const ShardView> shards, Layout layout,
                   const std::function<size_t(const Parameter&)>& group_of);

  // True if groups of the model may be updated one by one, without BeforeUpdates.
  virtual bool updates_groups_alone() const { return true; }
  // Called before a step's updates. Errors end the step; nothing is counted.
  virtual absl::Status BeforeUpdates(absl::Span<const ShardView> /*shards*/,
                                     absl::Span<const OptimizerGroupStep> /*groups*/) {
    return absl::OkStatus();
  }
  // Update number `update`, counted from 1, of slices of one group.
  virtual void Update(size_t group, int64_t update, const OptimizerGroupStep& step,
                      absl::Span<const OptimizerSlice> slices) = 0;

  size_t GroupOfShard(size_t shard) const { return entries_[shard].group; }
  float* StateOfShard(size_t shard, size_t state) { return entries_[shard].states[state].data(); }

 private:
  struct Entry {
    const Parameter* parameter;
    ShardPiece piece;
    size_t group;
    bool exists;  // The parameter had requires_grad in the constructor, or a gradient later.
    std::array<std::vector<float>, OptimizerSlice::kMaxStates> states;
    int64_t steps = 0;  // Updates with a gradient, unless frozen.
  };
  // The same treatment for all groups.
  std::vector<OptimizerGroupStep> ForAll(double gradient_scale) const;
  // Checks what a step takes.
  absl::Status CheckStep(absl::Span<const ShardView> shards,
                         absl::Span<const OptimizerGroupStep> groups) const;
  absl::Status CheckCount(size_t shards) const;
  // Checks that `shards` are those of entries_[first] and the following.
  absl::Status CheckShards(size_t first, absl::Span<const ShardView> shards) const;
  void AddStates(Entry& entry);
  // Adds the states of those of entries_[first] and the following that have a gradient.
  void AddMissingStates(size_t first, absl::Span<const ShardView> shards);
  void UpdateFrom(size_t first, absl::Span<const ShardView> shards,
                  absl::Span<const OptimizerGroupStep> groups);

  Layout layout_;
  std::vector<Entry> entries_;  // One for each shard, in the order of the constructor's shards.
  int64_t steps_ = 0;
};

}  // namespace weft
