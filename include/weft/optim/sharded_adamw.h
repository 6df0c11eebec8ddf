// AdamW optimizer over the shards that this rank owns. It has moments for each shard of a parameter with
// requires_grad, options by parameter group as in torch.optim, and a state that can be saved and loaded by
// parameter name.
//
//   ShardedAdamW optimizer(model->Shards(), {.lr = 1e-3, .weight_decay = 0.1},
//                          {{HasAtMostOneDim, {.lr = 1e-3, .weight_decay = 0}}});
//   ...
//   optimizer.Step(*model, norm.factor);
//
// A step may treat each parameter group differently: give it a gradient scale of its own, or freeze it.
//
// Thread safety: none; one thread drives an optimizer.
// Lifetime: the parameters must outlive the optimizer. It keeps no reference to the shards' memory after a
// call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/types/span.h>

#include "weft/optim/adamw.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// Options for the parameters that satisfy a predicate (an entry of torch.optim's param_groups; unrelated to
// the parameter groups of sharding).
struct AdamWParamGroup {
  std::function<bool(const Parameter&)> matches;
  AdamWOptions options;
};

// One step's treatment of the parameters that share an entry of ShardedAdamW::options().
struct AdamWGroupStep {
  double gradient_scale = 1.0;  // The clipping factor; multiplies the gradients.
  // The step skips the parameters: they do not decay, and their moments and numbers of updates stay the same.
  bool frozen = false;
};

// True if a parameter has at most one dim, as norm weights and biases have. Weight decay is often disabled
// for these.
bool HasAtMostOneDim(const Parameter& parameter);
// Returns a predicate that is true if the parameter's name contains one of `words`.
std::function<bool(const Parameter&)> NameContains(std::vector<std::string> words);

class ShardedAdamW {
 public:
  // The options of a parameter are those of the first of `param_groups` that matches it, otherwise `options`.
  // Moments start at zero.
  ShardedAdamW(absl::Span<const ShardView> shards, const AdamWOptions& options,
               const std::vector<AdamWParamGroup>& param_groups = {});

  // One update of all shards that have gradients. Shards without one, those of unused or frozen parameters,
  // do not change, nor do their moments and their number of updates. `gradient_scale`, the clipping factor,
  // multiplies the gradients.
  // Errors: kInvalidArgument (not the shards of the constructor; nothing was updated).
  absl::Status Step(absl::Span<const ShardView> shards, double gradient_scale = 1.0);
  // The same with one treatment for each entry of options(). REQUIRES: as many as there are entries.
  absl::Status Step(absl::Span<const ShardView> shards, absl::Span<const AdamWGroupStep> groups);
  // The same for all shards of the model. Updated shards are communicated while later ones are updated: see
  // ShardedModel::UpdateShards.
  // Errors: those of ShardedModel::CheckGradientsReduced; then nothing was updated or counted.
  absl::Status Step(ShardedModel& model, double gradient_scale = 1.0);
  absl::Status Step(ShardedModel& model, absl::Span<const AdamWGroupStep> groups);

  // The constructor's options, followed by those of each parameter group. May be changed between steps, for
  // example by a learning-rate schedule.
  absl::Span<AdamWOptions> options() { return absl::MakeSpan(options_); }

  // The optimizer's state: numbers of updates, and both moments as shards of their parameters. In these
  // ShardViews `data` is the moment and `grad` is null, so that moments are saved and loaded as weights are.
  // A parameter that had no requires_grad in the constructor has no moments before its first gradient, and is
  // left out until then.
  // As in torch.optim, bias correction counts the updates of each parameter: steps() less those in which it
  // had no gradient or was frozen. The number is the same on all ranks that hold a part of the parameter.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps);               // Of the optimizer and of every parameter.
  std::vector<int64_t> StepsOfShards() const;  // In the order of the constructor's shards.
  // REQUIRES: as many as there are shards.
  void SetStepsOfShards(absl::Span<const int64_t> steps);
  std::vector<ShardView> FirstMoments() { return MomentViews(&Moments::first); }
  std::vector<ShardView> SecondMoments() { return MomentViews(&Moments::second); }

 private:
  struct Moments {
    const Parameter* parameter;
    ShardPiece piece;
    size_t options;  // Index in options_.
    bool exists;     // The parameter had requires_grad in the constructor, or a gradient later.
    std::vector<float> first, second;
    int64_t steps = 0;  // Updates with a gradient, unless frozen.
  };
  // The same treatment for all entries of options_.
  std::vector<AdamWGroupStep> ForAll(double gradient_scale) const;
  absl::Status CheckCount(size_t shards) const;
  // Checks that `shards` are those of moments_[first] and the following.
  absl::Status CheckShards(size_t first, absl::Span<const ShardView> shards) const;
  void Update(size_t first, absl::Span<const ShardView> shards, absl::Span<const AdamWGroupStep> groups);
  std::vector<ShardView> MomentViews(std::vector<float> Moments::*moment);

  std::vector<AdamWOptions> options_;
  std::vector<Moments> moments_;  // One entry per shard, in the order of the constructor's shards.
  int64_t steps_ = 0;
};

}  // namespace weft
