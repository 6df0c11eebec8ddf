// Shards a model over a mesh: FSDP, HSDP or DDP, as the mesh says.
//
// Mesh axes: `replicate`, then `shard`; one that is missing has size 1. Shard alone is FSDP, both HSDP,
// replicate alone DDP. Each block becomes one parameter group, and what no block holds becomes the root's.
// Hooks on the modules do the rest: forward gathers a block, and the next ones ahead of it in the order that
// the last forward recorded (the first one records only); backward gathers in the reverse order and reduces
// gradients while earlier blocks compute.
//
//   WEFT_ASSIGN_OR_RETURN(auto model,
//                         FullyShard(net, net.blocks(), mesh, engine, policy, LoadInitialValues(seed)));
//   for (each step) {
//     for (each microbatch) {
//       model->SetRequiresGradientSync(is_last_microbatch);
//       Invocation invocation;
//       net.Forward(invocation, …); net.Backward(invocation, …);
//     }
//     WEFT_ASSIGN_OR_RETURN(GradientNorm norm, model->ClipGradNorm(1.0));
//     for (const ShardView& shard : model->Shards()) { update shard.data from norm.factor * shard.grad }
//     model->ZeroGradients();
//   }
//
// Gradients are summed over all ranks, not averaged: the loss carries the division by the global token count.
//
// Note [When shards may be written]: after the root's Backward has returned (it waits for all reductions, and
// until no peer reads this rank's shards), or after a Forward without gradients, until the next Forward
// begins.
//
// Thread safety: none; one thread drives a model.
// Collective: FullyShard, passes of the model, ClipGradNorm and ResetAfterError, by all ranks in one order.
// Lifetime: root and engine must outlive the sharded model, which removes its hooks from the modules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/module.h"
#include "weft/sharding/comm_context.h"
#include "weft/sharding/param_group.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/shard_view.h"

namespace weft {

struct GradientNorm {
  double norm;   // 2-norm over all parameters, before clipping; infinite if a gradient is no number.
  float factor;  // What gradients are to be multiplied by: ClipFactor(norm, max_norm).
};

class ShardedModel {
 public:
  ~ShardedModel();

  // Off: backward only accumulates (in full gradients: the next backward with it on reduces their sum). On at
  // first.
  void SetRequiresGradientSync(bool sync) { gradient_sync_ = sync; }
  // Forgets the gradients; without it the next backward after a reduction is an error.
  void ZeroGradients();

  // The norm is the same on every mesh, bit for bit. `max_norm` 0: no clipping, factor 1. Gradients are not
  // scaled. Errors: kFailedPrecondition (no reduced gradients).
  absl::StatusOr<GradientNorm> ClipGradNorm(double max_norm);

  // What this rank owns, in a fixed order. See Note [When shards may be written].
  std::vector<ShardView> Shards() const;

  // The root's group first, then the blocks' in the order of modules. For whole parameters outside of passes
  // (saving, comparing): Unshard and WaitUnshard a group on all ranks, read its parameters, Reshard it.
  absl::Span<const std::unique_ptr<ParamGroup>> groups() const { return groups_; }
  Module& root() const { return root_; }
  const ShardingPolicy& policy() const { return policy_; }
  CommContext& context() { return *context_; }

  // Largest memory in gathered images and full gradients since the last ResetPeaks of the context.
  size_t peak_buffer_bytes() const { return context_->image_peak_bytes() + context_->gradient_peak_bytes(); }

  // After an error of any pass: everything is sharded, without gradients, and the engine works again. Shards
  // keep their values. Errors: kDeadlineExceeded (names the ranks that have not come).
  absl::Status ResetAfterError();

 private:
  friend absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root,
                                                                  absl::Span<Module* const> blocks,
                                                                  const DeviceMesh& mesh, CommEngine& engine,
                                                                  const ShardingPolicy& policy,
                                                                  const ShardLoader& loader);
  class Hooks;
  ShardedModel(Module& root, ShardingPolicy policy, std::unique_ptr<CommContext> context);

  Module& root_;
  ShardingPolicy policy_;
  std::unique_ptr<CommContext> context_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::unique_ptr<Hooks> hooks_;
  bool gradient_sync_ = true;
};

// `blocks`: modules below the root, in any order, one group each; a block inside another is a group of its
// own. Loads every shard through `loader`; ranks agree on the outcome. Errors: kInvalidArgument (policy;
// mesh: axes, their order, their product; a block twice or not below the root; a parameter that two groups
// own, naming both), kResourceExhausted (node memory), and what the loader says.
absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, absl::Span<Module* const> blocks,
                                                         const DeviceMesh& mesh, CommEngine& engine,
                                                         const ShardingPolicy& policy,
                                                         const ShardLoader& loader);

}  // namespace weft
