// Sharding of a model over a mesh: FSDP, HSDP or DDP, depending on the mesh.
//
// Mesh axes: `replicate`, `shard`, `context`; a missing axis has size 1. `shard` alone is FSDP, `replicate`
// and `shard` are HSDP, `replicate` alone is DDP. Ranks along `context`, which split sequences, shard
// parameters like those along `shard`. Each block, of one module or several, becomes one parameter group; the
// parameters outside of all blocks become the root's group. Hooks on the modules do the rest: forward gathers
// a block and prefetches the next ones; backward gathers in reverse order and reduces gradients while earlier
// blocks compute.
//
// Note [The order of blocks]: the first pass follows the order of modules and is recorded. If all ranks
// recorded the same order, later passes expect it. A rank may skip blocks of that order in any pass: it still
// takes part in their collectives, and its part of their gradients is zero. Blocks that it calls in another
// order, or more often, must be called alike by all ranks; otherwise ranks get an error that names two of
// them and what each submitted. Blocks of a list, whose names end in numbers, are expected together: if a
// rank called one of them in the recorded pass, later passes gather all. Other blocks that no rank called
// then cost nothing, and all ranks must call them alike from then on.
// Calling a block outside of a pass of the root is an error.
//
//   WEFT_ASSIGN_OR_RETURN(auto model,
//                         FullyShard(net, net.units(), mesh, engine, policy, LoadInitialValues(seed)));
//   for (each step) {
//     for (each microbatch) {
//       model->SetRequiresGradientSync(is_last_microbatch);
//       Invocation invocation;
//       net.Forward(invocation, ...); net.Backward(invocation, ...);
//     }
//     WEFT_ASSIGN_OR_RETURN(GradientNorm norm, model->ClipGradNorm(1.0));
//     for (const ShardView& shard : model->Shards()) { if shard.grad: update shard.data }
//     model->ZeroGradients();
//   }
//
// Gradients are summed over all ranks, not averaged: the loss carries the division by the global token count.
//
// Note [When shards may be written]: in UpdateShards, outside of passes, and by updates in backward. Through
// Shards: from the end of the root's Backward, or of a Forward without gradients, until the next Forward,
// Unshard or UpdateShards, which may cast the shards for that forward. A Backward of an earlier Forward that
// is still due must come before: it would combine old activations with new weights, and writes through Shards
// are not noticed. At any other time, as after a Forward with gradients that gets no Backward, call
// BeginWriting first.
//
// Thread safety: none; one thread drives a model.
// Collective: FullyShard, passes of the model, and the functions that say so, by all ranks in one order.
// Lifetime: root and engine must outlive the sharded model, which removes its hooks from the modules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/module.h"
#include "weft/sharding/counters.h"
#include "weft/sharding/custom_collectives.h"
#include "weft/sharding/gradient_norm.h"
#include "weft/sharding/module_blocks.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/residency.h"
#include "weft/sharding/schedule_event.h"
#include "weft/sharding/schedule_rules.h"
#include "weft/sharding/shard_view.h"

namespace weft {

class BoundaryCasts;
class ModuleHooks;
class ShardedGroups;

// Handle of a gather that ShardedModel::Unshard started.
//
// Waiting is optional: the module's forward waits for the gather too.
//
// Lifetime: the model must outlive the handle.
class [[nodiscard]] UnshardHandle {
 public:
  // Blocks until the parameters can be read. Errors: kFailedPrecondition (waited for before, or resharded
  // since, as by ReduceGradients). An error of the gather fails the model on all ranks.
  absl::Status Wait();

 private:
  friend class ShardedModel;
  UnshardHandle(ShardedGroups& groups, int group) : groups_(&groups), group_(group) {}
  ShardedGroups* groups_;
  int group_;
  bool waited_ = false;
};

// Setters take effect with the next forward or backward, and must be called alike on all ranks. Functions
// that take a module return kInvalidArgument, with its name, if it is not the root or a module of a block.
// With `recurse`, they also set the groups of the modules below it, as FSDP2's setters do.
class ShardedModel {
 public:
  ~ShardedModel();

  // Off: backward only accumulates full gradients, and the next backward with it on reduces their sum.
  // Default: on.
  void SetRequiresGradientSync(bool sync);
  absl::Status SetRequiresGradientSync(const Module& module, bool sync, bool recurse = true);
  // Off: backward reduces gradients over the shard group only and adds them up in the rank's shard; the next
  // backward with it on reduces their sum over the replicas. Default: on.
  void SetRequiresAllReduce(bool all_reduce);
  absl::Status SetRequiresAllReduce(const Module& module, bool all_reduce, bool recurse = true);
  // Off: the root's backward does not wait for reductions; the next backward with it on does, and only then
  // gradients may be read and shards written. Default: on.
  void SetIsLastBackward(bool last);
  // On: groups are resharded between forward and backward: all blocks, or the group of `module`, also if
  // it is the root. Default: as the policy says.
  void SetReshardAfterForward(bool reshard);
  absl::Status SetReshardAfterForward(const Module& module, bool reshard, bool recurse = true);
  // Off: parameters stay unsharded after backward, and the next forward need not gather them. They keep the
  // values from before an update, so it must be on for the last backward before one. Default: on.
  void SetReshardAfterBackward(bool reshard);
  absl::Status SetReshardAfterBackward(const Module& module, bool reshard, bool recurse = true);

  // Divisor of the module's group instead of ShardingPolicy::gradient_divide_factor, from the next reduction
  // over all ranks on. Errors also: kInvalidArgument (not a positive number).
  absl::Status SetGradientDivideFactor(const Module& module, double factor);
  // Off: backward does not gather the module's group. For a module whose backward reads no parameter and
  // recomputes nothing, such as an embedding. Default: on.
  absl::Status SetUnshardInBackward(const Module& module, bool unshard);
  // Groups to prefetch when `module` begins its forward (backward), in this order, instead of the next ones
  // of the recorded order. An empty list prefetches nothing.
  absl::Status SetModulesToForwardPrefetch(const Module& module, absl::Span<Module* const> next);
  absl::Status SetModulesToBackwardPrefetch(const Module& module, absl::Span<Module* const> next);
  // Replace the engine's collectives for a module's group. Null: the engine's. With a custom all-gather, a
  // group in place gathers into a private image.
  absl::Status SetCustomAllGather(const Module& module, CustomAllGather all_gather);
  absl::Status SetCustomReduceScatter(const Module& module, CustomReduceScatter reduce_scatter);
  // Hook on the reduced gradients of a module's group; see its type. Null: none.
  absl::Status SetGradientHook(const Module& module, GradientHook hook);

  // Forgets the recorded order; the next pass is recorded again. For a model that from now on calls its
  // blocks in another order, or calls blocks that it did not call: Note [The order of blocks].
  void RecordOrderAgain();
  // Observes the schedule; see its type. Null: no observer.
  void SetScheduleObserver(ScheduleObserver observer);
  // Order and priorities of gathers and reductions; see the type. Null: the built-in rules. The lists of
  // SetModulesToForwardPrefetch and SetModulesToBackwardPrefetch come before the rules.
  void SetScheduleRules(std::shared_ptr<const ScheduleRules> rules);

  // Starts to gather a module's group outside of its forward. Collective: all ranks, at the same place.
  absl::StatusOr<UnshardHandle> Unshard(const Module& module);
  // Gives the parameters back. If ranks of a node share images: on all ranks, at the same place among
  // unshards. Errors: kFailedPrecondition (being unsharded: wait first).
  absl::Status Reshard(const Module& module);

  // Forgets the gradients, and reshards what SetReshardAfterBackward kept unsharded.
  void ZeroGradients();

  // Computes the gradient norm. Equal gradients give the same bits on every mesh. `max_norm` as in ClipSet;
  // with kNoClipping the factor is 1. The gradients are not scaled. Collective: all ranks.
  // Errors: as CheckGradientsReduced, and kInvalidArgument (a max_norm that is negative or NaN).
  absl::StatusOr<GradientNorm> ClipGradNorm(double max_norm, NormType type = NormType::kTwo);
  // The same for several sets of parameters, in one reduction. A parameter counts in the first set that
  // matches it, or in none. A set's norm has the same bits whatever the other sets are. `sets` must be alike
  // on all ranks. Errors: as ClipGradNorm.
  absl::StatusOr<std::vector<GradientNorm>> ClipGradNorms(absl::Span<const ClipSet> sets,
                                                          NormType type = NormType::kTwo);
  // Reduces a few values in place over all ranks of the mesh, for losses and counts; at most 512 bytes.
  // `label` names the reduction in errors and traces. Collective: all ranks. Errors: kInvalidArgument (too
  // many values).
  absl::Status AllReduceScalars(const std::string& label, void* values, DType dtype, int64_t count,
                                ReduceOp op);

  // Outside of passes: reduces what backwards without gradient sync or all-reduce have kept, and waits for
  // the reductions of backwards that were not the last. Then Shards has gradients, as after a last backward.
  // Gradients that are reduced already stay as they are. Reshards all groups, and shards may be written.
  // Collective: all ranks.
  absl::Status ReduceGradients();
  // OK if gradients are reduced. Errors: kFailedPrecondition (names the place where they are, and the
  // remedy).
  absl::Status CheckGradientsReduced() const;
  // The elements that this rank updates, in a fixed order. See Note [When shards may be written]. With the
  // optimizer sharded over replicas these are parts of the rank's shards; the other replicas update the rest.
  std::vector<ShardView> Shards() const;
  // True if this rank is the first of those that hold the same elements of a parameter. If parameters have
  // meshes of their own, a checkpoint takes the shards for which it is true, of the model and of the moments:
  // then all ranks together have each element once.
  bool IsFirstReplica(const Parameter& parameter) const;
  // All elements that this rank holds, without gradients, as the last updates left them. To be read outside
  // of passes, to compare or export them; a checkpoint takes Shards. Collective where the optimizer is
  // sharded over replicas: it gathers their updates.
  absl::StatusOr<std::vector<ShardView>> CurrentShards();
  // Calls `update` with the shards of each group, in the order of modules, and sends each group's update to
  // other ranks while later groups are updated. If shard groups span nodes, it also gathers the groups
  // that the next forward begins with. Calls BeginWriting if shards were read since they were written last.
  // Collective: all ranks. Errors: those of `update`, which fail all ranks: see ResetAfterError.
  absl::Status UpdateShards(const ShardUpdate& update);
  // Updates in backward: from now on, each group is updated by `update` as soon as a backward's reduction of
  // its gradients over all ranks arrives, and these gradients are freed. FinishUpdatesInBackward, after that
  // backward, sends the updates and returns the norms of the gradients by set. Call the former before the
  // last backward of a step, with gradient sync and all-reduce on. Norms and updates have the bits that
  // ClipGradNorms and UpdateShards give. `update` must not communicate.
  // Collective: FinishUpdatesInBackward, by all ranks. Errors: kFailedPrecondition (unused gradients are not
  // UnusedGradients::kZero; from the backward: it is not the last one; a gradient comes after its group was
  // reduced), kInvalidArgument (a set is to be clipped). If a gradient is not finite, the norm of its set is
  // infinite, and a part of the groups is updated: the shards are of no more use.
  absl::Status BeginUpdatesInBackward(ShardUpdate update, std::vector<ClipSet> sets);
  absl::StatusOr<std::vector<GradientNorm>> FinishUpdatesInBackward();
  // Outside of passes: reshards what was gathered for the next one, and waits until no peer reads this rank's
  // shards. Then they may be written, for example by a loader. An earlier invocation cannot run its backward
  // any more. Collective: all ranks.
  absl::Status BeginWriting();

  Module& root() const { return root_; }
  // The policy given to FullyShard, with its prefetch depth resolved. Setters do not change it.
  const ShardingPolicy& policy() const;
  // The residency of images, and its reason.
  const ResidencyChoice& residency() const;
  ShardingCounters counters() const;
  // Largest node memory in use since ResetPeaks.
  MemoryPeaks peaks() const;
  void ResetPeaks();
  // The groups below the level of modules (weft/sharding/sharded_groups.h).
  ShardedGroups& sharded_groups() const { return *groups_; }

  // Recovers from an error of any pass: all groups are sharded, without gradients, and the engine works
  // again. Shards keep their values. Collective: all ranks. Errors: kDeadlineExceeded (names the ranks that
  // have not called it), kDataLoss (an update by UpdateShards or in backward is missing or incomplete on
  // some ranks; names them. The model works again, but its weights may be of different steps: load them, and
  // the optimizer's states, on all ranks before the next step). Updates through Shards are not compared: a
  // program that makes them compares their numbers itself.
  absl::Status ResetAfterError();

 private:
  friend absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, const ModuleBlocks& blocks,
                                                                  const DeviceMesh& mesh, CommEngine& engine,
                                                                  const ShardingPolicy& policy,
                                                                  const ShardLoader& loader);
  ShardedModel(Module& root, const std::vector<std::vector<Module*>>& modules,
               std::unique_ptr<ShardedGroups> groups);
  absl::StatusOr<int> GroupOf(const Module& module) const;
  using GroupSetter = void (ShardedGroups::*)(int group, bool value);
  absl::Status SetBelow(const Module& module, bool recurse, GroupSetter set, bool value);
  absl::StatusOr<std::vector<int>> GroupsOf(absl::Span<Module* const> modules) const;

  Module& root_;
  absl::flat_hash_map<const Module*, int> group_of_;  // For the root and the modules of blocks.
  std::unique_ptr<ShardedGroups> groups_;
  std::unique_ptr<ModuleHooks> hooks_;
  std::unique_ptr<BoundaryCasts> casts_;
};

// `blocks`: modules below the root, in any order, one group for each block; a block inside another is a group
// of its own. A block may have several modules (see ModuleBlock), between whose first and last only whole
// blocks lie. Loads every shard through `loader`, and takes the parameters' data away. All ranks agree on
// the outcome; after an error the parameters keep their data. Errors: kInvalidArgument (policy; the mesh's
// axes, their order or their product; a module listed twice or not below the root; blocks that overlap; a
// parameter that two groups own; ranks that differ in the layout of a group, which it names; replicas that
// have loaded other values of a parameter, which it names; NodeShared::kOn where images cannot be shared),
// kFailedPrecondition (a parameter that a group of another model shards), kResourceExhausted (node memory),
// and the loader's.
absl::StatusOr<std::unique_ptr<ShardedModel>> FullyShard(Module& root, const ModuleBlocks& blocks,
                                                         const DeviceMesh& mesh, CommEngine& engine,
                                                         const ShardingPolicy& policy,
                                                         const ShardLoader& loader);

}  // namespace weft
