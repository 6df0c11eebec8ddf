// Group of parameters that one all-gather collects and one reduce-scatter reduces.
//
// Call order, for each use: (Unshard WaitUnshard [PrepareGradients [ReduceGradients]] Reshard)*. Repeating
// Unshard, WaitUnshard, PrepareGradients or Reshard has no effect.
//
// Note [Accumulation]
// Gradients of several passes add up until ZeroGradients, at the place where each pass leaves them: in the
// full gradients (passes without ReduceGradients; the next reduction takes them along), in the rank's partial
// sum (ReduceScope::kShard; the next kShardAndReplicate takes it along), or in the reduced sum
// (kShardAndReplicate each time). Only the reduced sum is handed out, and only when nothing is left in the
// other places: see CheckGradientsReduced. Order and rounding: Note [Order of additions].
//
// The *master* is this rank's shard in node memory, in fp32 or f64 (ParameterDTypes::master). A group is
// *cast* if its dtype differs from the master's. An unshard needs, in addition:
//
//   in place    Nothing. The ranks of the shard group share the image, of which their shards are a
//               partition. They are the masters; in a cast group each rank casts its own once an epoch. See
//               Note [Shards in place].
//   on a node   One image for each node, in a region that the local ranks of the shard group share; in a
//               cast group the cast shard too. See Note [Images shared on a node].
//   zero copy   The image, which the all-gather fills; in a cast group a cast fills the rank's own place
//               first. In a shard group of one rank that is not cast nothing: the master is the image.
//   otherwise   The image and, until it is copied out, the gathered buffer. A shard group of one rank
//               copies straight out of its master.
//
// A shard group of one rank, or a group without elements, goes through the same states without collectives.
//
// Note [Foreign storage]: a parameter's `data` is null while it is sharded. A caller may give it storage of
// its own, which it keeps: a group checks every parameter when it unshards, and copies the values into such
// storage, which ShardingCounters::copied_bytes counts. Storage that cannot hold the values is an error and
// leaves every parameter of the group unchanged.
//
// Note [Frozen parameters]
// A parameter that requires no gradient when its group is made is gathered like others, but has no place in
// gradient images and reductions, unless ShardingPolicy::trained_later gives it one. A frozen parameter with
// a place, also one that is frozen later, has a gradient of zero in reductions, and none in Masters. While no
// parameter with a place requires a gradient, the group has no gradients: preparing and reducing them has no
// effect. REQUIRES: requires_grad is the same on all ranks, and changes between steps only.
//
// Note [Unused parameters]
// Problem: an optimizer must skip a parameter that took no part in backward, but the reduced sum has zeros
// for it, and another rank may have used it. Rule: a group notes at each reduction which gradients this
// rank's backward has written, until ZeroGradients or ForgetReducedGradients. If the policy asks for it, the
// schedule says with AwaitUsedParameters that ranks will agree, and in the last backward SetUsedParameters,
// with the union over all ranks. Until then gradients count as not reduced. Why it suffices: ZeroGradients
// and ForgetReducedGradients run on all ranks alike; the latter is refused while an agreement is due. Between
// two of them a rank only sets flags. So one agreement holds for every reduction since the last of them.
//
// Thread safety: none; one thread drives a group.
// Collective: Load, Unshard and ReduceGradients, by all ranks of the context's groups in one order.
// Lifetime: the context must outlive the group.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "sharding/pipeline/comm_context.h"
#include "sharding/plan/group_spec.h"
#include "weft/memory/shared_block.h"
#include "weft/nn/parameter.h"
#include "weft/sharding/policy.h"
#include "weft/sharding/shard_view.h"

namespace weft {

struct DivideScales;
struct FlatImage;
struct PlacedCopy;
class GroupStorage;
class ReplicaUpdates;

class ParamGroup {
 public:
  enum class State : uint8_t {
    kSharded,     // Memory: the master. Parameters have no data.
    kUnsharding,  // Memory: the master and the image (without zero copy the gathered buffer too). No data
                  // yet.
    kUnsharded,   // Memory: the master and the image, which parameters view.
    // Memory: the master and one of the parts that the regather group divides the image into. Parameters have
    // no data. See ReshardAfterForward.
    kShardedAfterForward,
  };

  // `spec`: of its mesh's shard group and buckets. `image`: memory of a group in place, filled with zeros and
  // shared by all ranks of the shard group; empty for other groups. The master is zero until Load.
  // Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ParamGroup>> Create(CommContext& context, GroupSpec spec,
                                                            const ShardingPolicy& policy,
                                                            SharedBlock image = SharedBlock());
  ~ParamGroup();

  // Fills the elements of the master that this rank owns. REQUIRES: shards may be written.
  absl::Status Load(const ShardLoader& loader);
  // The elements of the master that Load fills, without gradients.
  std::vector<MasterView> WholeShards() const;
  // Takes the data that parameters had before the group away from them. Due after Load, when no group can
  // fail any more: a loader may read this data, and must find it again after an error.
  void DropParameterData();

  // Declares that the shard is about to be written outside of passes. What was cast of it does not count any
  // more: the writes after an update of the same epoch, which may have cast it, would be lost.
  void BeginWriting();
  // Declares that the shard is written and stays unchanged in this epoch. Due before
  // CommContext::BeginForward if the group is in place. Unshard does so as well.
  absl::Status EndWriting();
  // Starts to gather. Nothing happens if the group is unsharded or being unsharded.
  // Errors: kFailedPrecondition (storage that cannot hold a parameter: see Note [Foreign storage]).
  absl::Status Unshard(Priority priority);
  // Waits until the parameters view the image. Errors: kFailedPrecondition (sharded: nothing to wait for).
  absl::Status WaitUnshard();
  // Takes the data away from the parameters and gives the image back.
  // Errors: kFailedPrecondition (being unsharded: wait first).
  absl::Status Reshard();

  // Reshards until backward. If the group has a regather group, this rank keeps a copy of its part of the
  // image, and the next unshard gathers over that group alone. Reshard gives that part back as well; it is
  // due before shards are written.
  absl::Status ReshardAfterForward();

  // Gives every parameter that requires it a gradient view for backward to write or add to. See Note [Frozen
  // parameters]. Errors: kFailedPrecondition (a parameter that was frozen requires a gradient now).
  absl::Status PrepareGradients();
  // Starts to sum the gradients over the ranks of `scope`, and takes the views away. A parameter without a
  // gradient counts as zero. The result, added to earlier ones (Note [Accumulation]), is available after
  // CommContext::FinishBackward.
  // Errors: kFailedPrecondition (no gradients prepared; a view replaced by one of another shape or dtype).
  absl::Status ReduceGradients(ReduceScope scope = ReduceScope::kShardAndReplicate,
                               Priority priority = Priority::kReduce);
  // Notes that backward has left the group's gradients unreduced, also on a rank that has none of them.
  // Unlike has_unreduced_gradients, the note is the same on all ranks. Collective: all ranks.
  void KeepGradients() { keeps_gradients_ = true; }
  // Counts the gradient as zero, without communication, unless the group has a reduced gradient or a partial
  // sum. REQUIRES: no rank has an unreduced gradient of the group. Collective: all ranks.
  absl::Status CountGradientsAsZero();
  // Replace the engine's collectives from now on; the same on all ranks. Null: the engine's. A group in place
  // then gathers into a private image.
  void SetCustomAllGather(CustomAllGather all_gather);
  void SetCustomReduceScatter(CustomReduceScatter reduce_scatter) {
    reduce_scatter_ = std::move(reduce_scatter);
  }
  // True for each parameter whose gradient this rank has written and reduced since ZeroGradients. See Note
  // [Unused parameters].
  const std::vector<bool>& WrittenGradients() const { return written_; }
  // True for each parameter whose gradient this rank has written, but not reduced yet.
  std::vector<bool> UnreducedGradients() const;
  void AwaitUsedParameters() { awaits_used_ = true; }
  // `used`: true for a parameter whose gradient any rank has written. The others have no gradient.
  void SetUsedParameters(std::vector<bool> used);
  // Hook of the reductions that are started from now on. Null: none.
  void SetGradientHook(GradientHook hook) { gradient_hook_ = std::move(hook); }
  // Called when a reduction over all ranks that was started from now on has been added to the reduced sum, at
  // places that differ between ranks; it must not communicate. An error fails the context. Null: none.
  void SetReducedHook(std::function<absl::Status()> hook) { reduced_hook_ = std::move(hook); }
  // Divides later results of reductions over all ranks, also the partial sums that they take along.
  void SetGradientDivideFactor(double factor) { gradient_divide_factor_ = factor; }
  // Forgets the reduced gradients of some parameters, the same on all ranks: they have none until the next
  // reduction. Keeps those at earlier places of Note [Accumulation]. The reduced sum of the other parameters
  // moves to other memory. Nothing happens if no parameter is selected.
  // Errors: kFailedPrecondition (CheckCanForget), kResourceExhausted (then nothing has changed).
  absl::Status ForgetReducedGradients(const std::function<bool(const Parameter&)>& selects);
  // The same on all ranks.
  // Errors: kFailedPrecondition (reductions are under way, and a parameter is selected).
  absl::Status CheckCanForget(const std::function<bool(const Parameter&)>& selects) const;
  // By parameter: true if it has a reduced gradient. All false unless CheckGradientsReduced is OK.
  std::vector<bool> ReducedParameters() const;
  // This rank's elements, with views of the reduced sum for parameters that any rank has used, also while
  // CheckGradientsReduced holds the sum back.
  std::vector<MasterView> ReducedSums() const;
  // Owner of the reduced gradients' memory; null if there are none.
  std::shared_ptr<const void> reduced_gradients() const { return sums_; }
  // Forgets all gradients, including those under way.
  void ZeroGradients();
  bool has_unreduced_gradients() const { return static_cast<bool>(gradient_image_); }
  bool has_partial_sum() const { return sums_ != nullptr && sums_->has_partial; }
  // True if backwards have left gradients that are not summed over all ranks, except for those of Note [Late
  // gradients]. The same on all ranks, also if they have forgotten different reduced gradients.
  bool has_gradients_to_reduce() const { return keeps_gradients_ || has_partial_sum(); }
  // True if backwards have left gradients at any place of Note [Accumulation], except for those of Note [Late
  // gradients]. The same on all ranks.
  bool has_gradients_of_any_rank() const { return keeps_gradients_ || sums_ != nullptr; }
  // OK if the gradients are summed over all ranks, or were forgotten since, and nothing is under way: an
  // epoch has ended since the last reduction. The same on all ranks, whenever reductions arrive. Ranks differ
  // only if some have gradients of Note [Late gradients] while gradient sync is off.
  // Errors: kFailedPrecondition (names the group, the place where its gradients are, and the remedy).
  absl::Status CheckGradientsReduced() const;
  // The same for updates in backward, which do not wait for the end of the epoch: if all reductions have
  // arrived, gradients count as reduced from now on.
  absl::Status TakeArrivedGradients();
  bool has_reduced_gradients() const { return CheckGradientsReduced().ok(); }

  // Returns to the sharded state, without gradients, after CommContext::ResetAfterError.
  void ResetAfterError();

  // The elements that this rank updates, by ascending place. `grad` is null unless CheckGradientsReduced is
  // OK.
  std::vector<MasterView> Masters() const;
  // The same. REQUIRES: an fp32 master.
  std::vector<ShardView> Shards() const;
  // Runs an update of these shards, which may write their casts too: see ShardCast. REQUIRES: an fp32 master;
  // shards may be written; BeginWriting was called.
  absl::Status Update(const ShardUpdate& update);
  // If replicas share the optimizer, starts to gather their updates of this rank's shard, unless it is
  // current or the group is unsharded (Note [When masters are current]). Unshard does so as well. Afterwards
  // the shard must not be written before the next epoch. Collective: by the ranks of each replicate group.
  absl::Status AllGatherUpdates(Priority priority);
  // All elements that this rank holds, to be read, without gradients. Waits for AllGatherUpdates. REQUIRES:
  // an fp32 master.
  absl::StatusOr<std::vector<ShardView>> CurrentShards();

  const std::string& name() const { return spec_.name(); }
  int modules() const { return spec_.members.modules; }  // See GroupMembers.
  State state() const { return state_; }
  const ParameterDTypes& dtypes() const { return spec_.dtypes; }
  const FlatLayout& layout() const { return spec_.layout; }
  // Process groups and lanes of the group's mesh.
  PipelineLanes& lanes() const { return context_.lanes(spec_.mesh); }
  const std::vector<ReplicaSlice>& slices() const { return slices_; }
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return spec_.parameters(); }

 private:
  ParamGroup(CommContext& context, GroupSpec spec, const ShardingPolicy& policy);
  // By slice, the parts of its replicas in an image that holds the shard in ranges.
  std::vector<PipelineLanes::Parts> ReplicaParts() const;
  // Masters with views of the reduced sum for these parameters. REQUIRES: the sum has memory if any is
  // selected.
  std::vector<MasterView> MastersWith(const std::vector<bool>& has_gradient) const;
  FlatImage data_image() const;
  absl::Status ViewImage();
  void DropImage();
  // True if a reduction was started in this epoch. The same on all ranks.
  bool has_reductions_under_way() const { return reduction_epoch_ == context_.epochs().current(); }
  // True if no parameter has a gradient: Note [Frozen parameters].
  bool is_frozen() const;
  // By parameter: true if any rank has used it, and it has gradients.
  std::vector<bool> UsedParameters() const;
  absl::Status CheckFrozenHaveNoPlace() const;
  bool has_reduced_sum() const { return sums_ != nullptr && sums_->reduced; }
  // By parameter: true if it has a place for a gradient (Note [Frozen parameters]) and is selected.
  std::vector<bool> WithPlace(const std::function<bool(const Parameter&)>& selects) const;
  // `forgotten`: by parameter.
  void ZeroReducedGradients(const std::vector<bool>& forgotten);
  // Factors of the next reduction. All addends of a partial sum have the same factor before their reduction.
  DivideScales ChooseScales();
  // The input of the reduce-scatter; a cast multiplies it by `scale`.
  absl::StatusOr<Buffer> TakeReduceInput(double scale);

  CommContext& context_;
  const GroupSpec spec_;
  double gradient_divide_factor_;
  double partial_scale_ = 1.0;  // DivideScales::before of the partial sum, if there is one.
  std::vector<ReplicaSlice> slices_;
  std::unique_ptr<ReplicaUpdates> updates_;
  std::vector<PlacedCopy> copy_in_;  // Without zero copy only.
  std::unique_ptr<GroupStorage> storage_;
  State state_ = State::kSharded;
  Buffer gradient_image_;
  CustomReduceScatter reduce_scatter_;
  GradientHook gradient_hook_;
  std::function<absl::Status()> reduced_hook_;
  std::shared_ptr<GradientSums> sums_;  // Null before the first reduction.
  bool has_forgotten_all_ = false;      // ForgetReducedGradients has left none.
  std::vector<bool> written_;           // By parameter: Note [Unused parameters].
  std::vector<bool> used_;              // By parameter.
  bool awaits_used_ = false;
  bool keeps_gradients_ = false;             // See KeepGradients.
  std::optional<uint64_t> reduction_epoch_;  // Epoch of the last reduction.
};

}  // namespace weft
