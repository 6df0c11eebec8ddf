// Epochs of a sharded model. Each epoch begins when shards may be written, and ends when all reads of them
// have finished.
//
// CommContext::FinishBackward ends an epoch. Casts of masters, updates of replicas and images in place are
// valid for the epoch in which they were made.
//
// Note [Shards in place]
// Problem: the ranks of a shard group share one block of node memory. Each rank writes its own range: an
// optimizer or a loader writes it in fp32, and in a narrower dtype a cast of the rank's master writes it once
// an epoch. Every rank reads the whole block. Nothing moves, so no collective separates writers from readers.
// Rule: two barriers of the shard group order each epoch. They are flags in node memory.
//
//   written   A rank submits it when it has written its range, and waits for it before it reads. A forward
//             submits one for all groups. A rank waits for it only when it needs a group, so ranks do not
//             wait for each other's forward. A group that is unsharded before the forward submits one for
//             itself, so that it can be used while other groups are still being updated. A group needs one
//             such barrier in an epoch. If replicas share the optimizer, each group submits its own,
//             after the gather of the other replicas' updates.
//   read      A rank submits it when it reads no shard any more in this epoch. FinishBackward waits for it,
//             and only then shards may be written. REQUIRES: all groups are resharded.
//
// Why it suffices: a barrier is *ready* when all ranks have submitted it. A rank that sees a flag also sees
// everything that the flag's rank wrote before it, so a late flag makes a rank wait and never lets it read
// too early. A rank that skips a block submits the same barriers, because they belong to epochs and not to
// blocks. After an error no rank reads or writes before ResetAfterError, which all ranks enter outside of any
// pass. A rank that destroys its model leaves its range to the others: the block stays until its last holder
// frees it. Without it: an optimizer overwrites weights that a slower rank still multiplies with.
//
// Thread safety: none.
// Collective: every function that submits a barrier, by all ranks of the shard group in one order.
// Lifetime: state and lanes must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/status.h>

#include "sharding/pipeline/pipeline_lanes.h"
#include "sharding/pipeline/pipeline_state.h"

namespace weft {

class StepEpochs {
 public:
  // `in_place`: whether the ranks of the shard group read each other's shards in place. `model`: its name,
  // for messages.
  StepEpochs(PipelineState& state, PipelineLanes& lanes, bool in_place, const std::string& model)
      : state_(state),
        lanes_(lanes),
        in_place_(in_place),
        written_label_("shards written of " + model),
        read_label_("shards read of " + model) {}

  // Number of the present epoch, at least 1.
  uint64_t current() const { return epoch_; }
  // True if a gather of shards or updates has begun in this epoch, or a use of an image that an earlier one
  // has gathered. Then shards must not be written before the next one. The same on all ranks.
  bool is_read() const { return is_read_; }
  void MarkRead() { is_read_ = true; }

  // Submits the *written* barrier of all groups, once an epoch. Nothing happens if images are not in place,
  // or if replicas share the optimizer: then WrittenBarrier submits one for each group. REQUIRES: this rank
  // has written all its shards of this epoch.
  void EndWriting();
  // Returns the *written* barrier that a reader of `group` must wait for, and submits it if EndWriting has
  // not. Null if the group has it already in this epoch. `seen_epoch`: epoch of the group's last call,
  // updated here. `after`: the gather of updates that also writes this rank's range; null if there is none.
  // REQUIRES: images are in place.
  std::shared_ptr<Work> WrittenBarrier(const std::string& group, uint64_t& seen_epoch, const Work* after);
  // Submits the *read* barrier, if images are in place. REQUIRES: this rank reads no shard any more in this
  // epoch.
  void EndReading();

  // Keeps a gather of updates until the end of the epoch, since groups may wait for it until then.
  Work* KeepUpdate(Work update) { return &updates_.emplace_back(std::move(update)); }
  // Waits until no peer reads a shard through a gather of updates.
  absl::Status AwaitUpdates();

  // Ends the epoch: waits for its gathers of updates and, if images are in place, for the *read* barrier.
  // Then shards may be written. REQUIRES: EndReading was called.
  absl::Status Finish();

  // Starts a new epoch after CommEngine::ResetAfterError.
  void ResetAfterError();

 private:
  void Start();

  PipelineState& state_;
  PipelineLanes& lanes_;
  const bool in_place_;
  const std::string written_label_;
  const std::string read_label_;
  uint64_t epoch_ = 1;
  bool is_read_ = false;
  std::shared_ptr<Work> written_;  // Barrier of all groups in this epoch; null before EndWriting.
  Work read_;
  std::deque<Work> updates_;  // Gathers of updates in this epoch.
};

}  // namespace weft
