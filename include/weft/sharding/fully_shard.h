// Shards a model over a mesh: FSDP, HSDP or DDP, as the mesh says.
//
// Mesh axes: `replicate`, `shard`, `context`; one that is missing has size 1. Shard alone is FSDP, with
// replicate HSDP, replicate alone DDP; ranks along `context`, which split sequences among them, shard
// parameters like those along `shard`. Each block becomes one parameter group, and what no block holds
// becomes the root's. Hooks on the modules do the rest: forward gathers a block, and the next ones ahead of
// it; backward gathers in the reverse order and reduces gradients while earlier blocks compute.
//
// Note [The order of blocks]: the first pass goes by the order of the modules, and is recorded; if all ranks
// recorded the same, later passes expect that order. A rank may skip blocks of it in any pass: it takes part
// in their collectives nevertheless, and its part of their gradients is zero. Blocks that it calls in another
// order, or more often, it must call like all others, else ranks get an error that names two of them and
// what each submitted. Blocks that no rank called in the recorded pass cost nothing but their reduction.
//
//   WEFT_ASSIGN_OR_RETURN(auto model,
//                         FullyShard(net, net.units(), mesh, engine, policy, LoadInitialValues(seed)));
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
// begins. A group that is unsharded in between, by hand or by UpdateShards, belongs to that Forward already:
// its shards must be written before, and if they are to be written again, BeginWriting ends the reading.
//
// Thread safety: none; one thread drives a model.
// Collective: FullyShard, passes of the model, ClipGradNorm and ResetAfterError, by all ranks in one order.
// Lifetime: root and engine must outlive the sharded model, which removes its hooks from the modules.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/module.h"
#include "weft/sharding/comm_context.h"
#include "weft/sharding/param_group.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"
#include "weft/sharding/schedule_event.h"
#include "weft/sharding/shard_view.h"

namespace weft {

class BoundaryCasts;
class ModelScalars;
struct PlannedGroup;

using ShardUpdate = std::function<absl::Status(absl::Span<const ShardView> shards)>;

enum class NormType : uint8_t { kOne, kTwo, kInfinity };

struct GradientNorm {
  double norm;   // Over all parameters, before clipping; infinite if a gradient is no number.
  float factor;  // What gradients are to be multiplied by: ClipFactor(norm, max_norm).
};

// A gather that was started ahead of its use. One that is not waited for is waited for by the module's
// forward.
//
// Lifetime: the model must outlive it.
class [[nodiscard]] UnshardHandle {
 public:
  // Until the parameters may be read. Errors: kFailedPrecondition (waited for before).
  absl::Status Wait();

 private:
  friend class ShardedModel;
  explicit UnshardHandle(ParamGroup& group) : group_(&group) {}
  ParamGroup* group_;
  bool waited_ = false;
};

// Setters take effect from the next forward or backward on, and must be called alike on all ranks.
class ShardedModel {
 public:
  ~ShardedModel();

  // Off: backward only accumulates (in full gradients: the next backward with it on reduces their sum). On at
  // first.
  void SetRequiresGradientSync(bool sync) { gradient_sync_ = sync; }
  // Off: what backward reduces is summed over the shard group only, and added up in the rank's shards; the
  // next backward with it on sums them over the replicas. On at first.
  void SetRequiresAllReduce(bool all_reduce) { all_reduce_ = all_reduce; }
  // Off: the root's backward does not wait for the reductions under way; the next one with it on does, and
  // only then may gradients be read and shards be written. On at first.
  void SetIsLastBackward(bool last) { is_last_backward_ = last; }
  // Whether blocks give their parameters back between forward and backward; the root's group follows
  // ShardingPolicy::reshard_root_after_forward. At first as the policy says.
  void SetReshardAfterForward(bool reshard) { policy_.reshard_after_forward = reshard; }
  // Off: parameters stay unsharded after backward, so that the next forward need not gather. They hold the
  // values of before an update, so it must be on for the last backward before one. On at first.
  void SetReshardAfterBackward(bool reshard) { reshard_after_backward_ = reshard; }

  // Off: backward does not gather the module's group, for one whose backward reads no parameter, such as an
  // embedding (and which recomputes nothing). On at first.
  // Errors: kInvalidArgument (a module that is no group of this model; it is named).
  absl::Status SetUnshardInBackward(const Module& module, bool unshard);

  // What is gathered ahead when `module` begins its forward (its backward), instead of what the recorded
  // order says: all of `ahead`, in this order; nothing if it is empty.
  // Errors: kInvalidArgument (a module that is no group of this model; it is named).
  absl::Status SetModulesToForwardPrefetch(const Module& module, absl::Span<Module* const> ahead);
  absl::Status SetModulesToBackwardPrefetch(const Module& module, absl::Span<Module* const> ahead);

  // Forgets the recorded order: the next pass is recorded again. For a model that calls its blocks in another
  // order from now on, or blocks that it did not call.
  void RecordOrderAnew();
  // Watches the schedule; see its type. Null: nobody.
  void SetScheduleObserver(ScheduleObserver observer) { observer_ = std::move(observer); }

  // Starts to gather a module's group outside of its forward. Collective: by all ranks, at the same place.
  // Errors: kInvalidArgument (no group of this model).
  absl::StatusOr<UnshardHandle> Unshard(const Module& module);
  // Gives them back. On all ranks at the same place among unshards, where images are shared on nodes. Errors:
  // kInvalidArgument (as above), kFailedPrecondition (still being unsharded).
  absl::Status Reshard(const Module& module);

  // Forgets the gradients, and gives back what SetReshardAfterBackward kept.
  void ZeroGradients();

  // The norm is the same on every mesh, bit for bit. `max_norm` 0: no clipping, factor 1. Gradients are not
  // scaled. A maximum is exchanged, and but for kInfinity a sum. Errors: kFailedPrecondition (no reduced
  // gradients).
  absl::StatusOr<GradientNorm> ClipGradNorm(double max_norm, NormType type = NormType::kTwo);

  // What this rank updates, in a fixed order. See Note [When shards may be written]. With the optimizer
  // sharded over replicas these are parts of its shards, the rest of which the other replicas update.
  std::vector<ShardView> Shards() const;
  // All that this rank holds, without gradients, as the last updates have left it: to be saved or compared
  // outside of passes, not written: that is what Shards are for. Where the optimizer is sharded over
  // replicas, collective, and as an unshard of all groups: what the others have updated is gathered.
  absl::StatusOr<std::vector<ShardView>> CurrentShards();
  // Calls `update` with the shards of each group, in the order in which forward will need them, so that what
  // was updated first is on its way to other ranks while the rest is: where shard groups span nodes, the
  // groups that the next forward begins with are gathered. Shards must not be written again before the next
  // pass is over, but after BeginWriting. Collective: by all ranks. Errors: those of `update`, which stop all
  // ranks: see ResetAfterError.
  absl::Status UpdateShards(const ShardUpdate& update);
  // Outside of passes: gives back what was gathered ahead of the next one, and waits until no peer reads this
  // rank's shards. They may then be written, as by somebody who loads a state. Collective: by all ranks.
  absl::Status BeginWriting();

  // The root's group first, then the blocks' in the order of modules. For whole parameters outside of passes
  // (saving, comparing): Unshard and WaitUnshard a group on all ranks, read its parameters, Reshard it.
  absl::Span<const std::unique_ptr<ParamGroup>> groups() const { return groups_; }
  Module& root() const { return root_; }
  const ShardingPolicy& policy() const { return policy_; }
  // Where images lie, and why.
  const ResidencyChoice& residency() const { return residency_; }
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
  using PrefetchLists = absl::flat_hash_map<int, std::vector<int>>;  // By group.
  ShardedModel(Module& root, ShardingPolicy policy, ResidencyChoice residency,
               std::unique_ptr<CommContext> context);
  absl::Status Hook(absl::Span<const PlannedGroup> plan, const DeviceMesh& mesh);
  // This rank's reduced gradients, but for those that another replica counts.
  std::vector<absl::Span<const float>> GradientsToCount() const;
  absl::StatusOr<int> GroupOf(const Module& module) const;
  absl::Status SetPrefetch(const Module& module, absl::Span<Module* const> ahead, PrefetchLists& lists);

  Module& root_;
  ShardingPolicy policy_;
  ResidencyChoice residency_;
  std::unique_ptr<CommContext> context_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::vector<Module*> modules_;  // Of the groups.
  std::unique_ptr<ModelScalars> scalars_;
  std::unique_ptr<Hooks> hooks_;
  std::unique_ptr<BoundaryCasts> casts_;
  ScheduleObserver observer_;
  PrefetchLists forward_prefetch_, backward_prefetch_;
  absl::flat_hash_set<int> sharded_in_backward_;  // Groups.
  bool gradient_sync_ = true;
  bool all_reduce_ = true;
  bool is_last_backward_ = true;
  bool reshard_after_backward_ = true;
};

// `blocks`: modules below the root, in any order, one group each; a block inside another is a group of its
// own. Loads every shard through `loader`; ranks agree on the outcome. Errors: kInvalidArgument (policy;
// mesh: axes, their order, their product; a block twice or not below the root; a parameter that two groups
// own, naming both; NodeShared::kOn where it cannot be), kResourceExhausted (node memory), and what the
// loader says.
absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, absl::Span<Module* const> blocks,
                                                         const DeviceMesh& mesh, CommEngine& engine,
                                                         const ShardingPolicy& policy,
                                                         const ShardLoader& loader);

}  // namespace weft
