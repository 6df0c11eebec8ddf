// Parameters that are gathered and reduced by one collective each.
//
// Call order, for each use: (Unshard WaitUnshard [PrepareGradients [ReduceGradients]] Reshard)*, where
// unsharding, waiting, preparing and resharding may each be repeated without effect.
//
// Note [Accumulation]
// Gradients of several passes add up until ZeroGradients, wherever they stop on their way: in the full
// gradients (passes without ReduceGradients; the next reduction takes them along), in the rank's partial sum
// (ReduceScope::kShard; the next kShardAndReplicate takes it along), or in the reduced sum
// (kShardAndReplicate each time). Only the reduced sum is handed out, and only when nothing else is left: see
// CheckGradientsReduced. Order and rounding: Note [Order of additions].
//
// Sharded dtype fp32, in node memory (the master). What an unshard needs beside it:
//
//   in place    nothing: the ranks of the shard group hold the image together, in which their shards lie end
//               to end. In fp32 these are the masters; in bf16 each rank casts its own there, once a pass.
//               See Note [Shards in place].
//   on a node   the image once a node, in a region that the ranks of the shard group there hold together; in
//               bf16 the cast shard. See Note [Images shared on a node].
//   zero copy   the image, which the all-gather fills; in bf16 a cast fills the rank's own range first. In a
//               shard group of one and fp32 nothing: the master is the image.
//   else        the image, and until it has been copied out the gathered buffer. A shard group of one copies
//               straight out of its master.
//
// Collectives are skipped in a shard group of one and for a group without elements; the states are the same.
//
// Note [Foreign storage]: a parameter's `data` is null while it is sharded. A caller who gives it storage of
// their own keeps it: a group checks every parameter when it unshards, and copies the values of such a one
// into that storage instead of letting it view the image (kept in fallback_reason()). Storage that cannot
// hold the values is an error, and leaves every parameter of the group as it was.
//
// Note [Frozen parameters]
// Parameters that require no gradient when their group is made are gathered like others, but have no place
// in gradient images and reductions. A group of frozen parameters only has no gradients at all: preparing and
// reducing them does nothing. A parameter that is frozen later keeps its place; its gradient counts as zero.
//
// Thread safety: none; one thread drives a group.
// Collective: Load, Unshard and ReduceGradients, by all ranks of the context's groups in one order.
// Lifetime: the context must outlive the group.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/memory/shared_block.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/comm_context.h"
#include "weft/sharding/flat_layout.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/shard_view.h"

namespace weft {

struct FlatImage;
struct GroupSpec;
struct PlacedCopy;
class GroupStorage;
class ReplicaUpdates;

class ParamGroup {
 public:
  enum class State : uint8_t {
    kSharded,     // The master shard only; parameters have no data.
    kUnsharding,  // And the image (without zero copy the gathered buffer too); parameters have no data yet.
    kUnsharded,   // And the image; parameters view it.
    // The master shard and one part of the image, as long as those of (shard group / regather group) ranks;
    // parameters have no data. See ReshardAfterForward.
    kShardedAfterForward,
  };

  // `buckets[i]`: the replicate bucket of parameter i; empty: all in bucket 0. The master is zero until Load.
  // Errors: kInvalidArgument (a parameter twice; a shard dim out of range; parameters whose original,
  // all-gather, reduce or gradient dtypes differ), kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ParamGroup>> Create(
      CommContext& context, std::string name, std::vector<std::shared_ptr<Parameter>> parameters,
      const ShardingPolicy& policy, const std::vector<int>& buckets = {});
  // `image`: for a group in place, zero, and held by all ranks of the shard group. Empty: as above. Errors:
  // kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ParamGroup>> Create(CommContext& context, GroupSpec spec,
                                                            const ShardingPolicy& policy, SharedBlock image);
  ~ParamGroup();

  // Fills the master shard, element by element that this rank owns, and takes the parameters' data away. Due
  // when shards may be written.
  absl::Status Load(const ShardLoader& loader);

  // The shard has been written, and will not be again before the next pass: due before
  // CommContext::BeginForward, where a group is in place. Unshard does so as well.
  absl::Status EndWriting();
  // Starts to gather. Nothing happens where that was done already.
  // Errors: kFailedPrecondition (storage that cannot hold a parameter: see Note [Foreign storage]).
  absl::Status Unshard(Priority priority);
  // Errors: kFailedPrecondition (sharded: nothing to wait for).
  absl::Status WaitUnshard();
  // Takes the data away from the parameters and gives the image back; of sharded ones there is none.
  // Errors: kFailedPrecondition (while unsharding: wait first).
  absl::Status Reshard();

  // The same, until backward: where the context has a regather group, this rank keeps its part of the image
  // (a copy), and the next unshard gathers over that group alone. Reshard gives that part back as well, which
  // is due before shards are written.
  absl::Status ReshardAfterForward();

  // Gives every parameter that requires it a gradient view, to be written or added to by backward. See Note
  // [Frozen parameters]. Errors: kFailedPrecondition (a parameter that was frozen requires a gradient now).
  absl::Status PrepareGradients();
  // Starts to sum the gradients over the ranks of `scope`, and takes the views away. Parameters that have
  // received no gradient count as zero. The result, added to what earlier reductions gave (see Note
  // [Accumulation]), is there after CommContext::FinishBackward.
  // Errors: kFailedPrecondition (no gradients prepared; a view replaced by one of another shape or dtype).
  absl::Status ReduceGradients(ReduceScope scope = ReduceScope::kShardAndReplicate);
  // For a group that took no part in backward on any rank: its gradient is zero, and nothing is exchanged.
  // Nothing happens where it has gradients, reduced or not. Collective: all ranks.
  absl::Status CountGradientsAsZero();
  // In place of the engine's collectives from now on; all ranks set the same. Unset (null): the engine's.
  // A group in place then has an image of its own.
  void SetCustomAllGather(CustomAllGather all_gather);
  void SetCustomReduceScatter(CustomReduceScatter reduce_scatter) {
    reduce_scatter_ = std::move(reduce_scatter);
  }
  // Of the reductions that are started from now on; see its type. Unset (null): none.
  void SetGradientHook(GradientHook hook) { gradient_hook_ = std::move(hook); }
  // Forgets all gradients, those under way too.
  void ZeroGradients();
  bool has_unreduced_gradients() const { return static_cast<bool>(gradient_image_); }
  // Some, however far they have come.
  bool has_gradients() const { return has_unreduced_gradients() || sums_ != nullptr; }
  // Whether gradients are summed over all ranks, and none are left on their way there. Errors:
  // kFailedPrecondition (names the group, how far its gradients have come, and the remedy).
  absl::Status CheckGradientsReduced() const;
  bool has_reduced_gradients() const { return CheckGradientsReduced().ok(); }

  // After CommContext::ResetAfterError: sharded, without gradients.
  void ResetAfterError();

  // What this rank updates, by ascending place; `grad` is null unless CheckGradientsReduced is OK.
  std::vector<ShardView> Shards() const;
  // Where the optimizer is sharded over replicas: starts to gather what the others have updated of this
  // rank's shard, unless it is current, or unsharded: see Note [When masters are current] in
  // sharding/replica_updates.h. Unshard does so as well. Afterwards the shard must not be written before the
  // next pass. Collective: by the ranks of each replicate group.
  absl::Status AllGatherUpdates(Priority priority);
  // What this rank holds, to be read, without gradients, after AllGatherUpdates: waits for it.
  absl::StatusOr<std::vector<ShardView>> CurrentShards();

  const std::string& name() const { return name_; }
  State state() const { return state_; }
  const ParameterDTypes& dtypes() const { return dtypes_; }
  const FlatLayout& layout() const { return layout_; }
  const std::vector<ReplicaSlice>& slices() const { return slices_; }
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }
  // Why values were copied that should have been views, since the last unshard; empty where none were.
  const std::string& fallback_reason() const { return fallback_reason_; }

 private:
  ParamGroup(CommContext& context, GroupSpec spec, const ShardingPolicy& policy);
  std::vector<ShardView> WholeShards() const;
  FlatImage data_image() const;
  absl::Status ViewImage();
  void DropImage();
  absl::Status CheckFrozenUnchanged() const;
  // Scaled, where it has to be cast anyway.
  absl::StatusOr<Buffer> TakeReduceInput(float scale);

  CommContext& context_;
  std::string name_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  ShardingPolicy policy_;
  ParameterDTypes dtypes_;
  FlatLayout layout_;
  std::vector<ReplicaSlice> slices_;
  std::unique_ptr<ReplicaUpdates> updates_;
  std::vector<PlacedCopy> copy_in_;  // Without zero copy only.
  std::unique_ptr<GroupStorage> storage_;
  State state_ = State::kSharded;
  std::string fallback_reason_;
  Buffer gradient_image_;
  CustomReduceScatter reduce_scatter_;
  GradientHook gradient_hook_;
  std::shared_ptr<GradientSums> sums_;  // Null before the first reduction.
};

}  // namespace weft
