// AdamW over what a rank owns of a model: the moments of every shard, options by set of parameters, and a
// state that is reached by name.
//
//   ShardedAdamW optimizer(model->Shards(), {.lr = 1e-3, .weight_decay = 0.1},
//                          {{IsVector, {.lr = 1e-3, .weight_decay = 0}}});
//   …
//   optimizer.Step(*model, norm.factor);
//
// Thread safety: none; one thread drives an optimizer.
// Lifetime: the parameters must outlive it; shards are only used during a call.
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

// Parameters with options of their own.
struct AdamWSet {
  std::function<bool(const Parameter&)> holds;
  AdamWOptions options;
};

// Whether a parameter has one dim or none, as the weights of norms and biases have, which weight decay is
// often kept from.
bool IsVector(const Parameter& parameter);
// A predicate: the parameter's name contains one of `words`.
std::function<bool(const Parameter&)> NameContains(std::vector<std::string> words);

class ShardedAdamW {
 public:
  // A parameter belongs to the first of `sets` that holds it, else to `options`. Moments start as zeros.
  ShardedAdamW(absl::Span<const ShardView> shards, const AdamWOptions& options,
               const std::vector<AdamWSet>& sets = {});

  // One update of all shards that have gradients, multiplied by `gradient_scale` (the clipping factor).
  // Errors: kInvalidArgument (not the shards that the optimizer was made for; nothing was updated).
  absl::Status Step(absl::Span<const ShardView> shards, float gradient_scale = 1.0F);
  // The same, of all shards of the model, which sends on what is updated while the rest is: see
  // ShardedModel::UpdateShards.
  absl::Status Step(ShardedModel& model, float gradient_scale = 1.0F);

  // Those given at first, then those of each set; a schedule sets their learning rates between steps.
  absl::Span<AdamWOptions> options() { return absl::MakeSpan(options_); }

  // The state: the number of updates, and the moments as shards of their parameters (`data` is the moment,
  // there is no `grad`), to be saved and loaded as weights are.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  std::vector<ShardView> FirstMoments() { return MomentViews(&Moments::first); }
  std::vector<ShardView> SecondMoments() { return MomentViews(&Moments::second); }

 private:
  struct Moments {
    const Parameter* parameter;
    ShardPiece piece;
    size_t set;  // Index of its options.
    std::vector<float> first, second;
  };
  absl::Status CheckCount(size_t shards) const;
  // Those from number `first` on.
  absl::Status CheckShards(size_t first, absl::Span<const ShardView> shards) const;
  void Update(size_t first, absl::Span<const ShardView> shards, float gradient_scale);
  std::vector<ShardView> MomentViews(std::vector<float> Moments::*moment);

  std::vector<AdamWOptions> options_;
  std::vector<Moments> moments_;  // Of each shard.
  int64_t steps_ = 0;
};

}  // namespace weft
