// Communication pipeline of one sharded model: its lanes, node memory, reductions and epochs.
//
// In backward a group's reduce-scatter and the all-reduces of its replicate buckets are submitted together in
// program order, each on lanes of its own, so that the all-reduce of one group overlaps the reduce-scatter of
// the next (one exception: Note [When an all-reduce is submitted]). A bounded number of each is in flight;
// submitting one more first completes the oldest. Full gradients return to their pool when their
// reduce-scatter is *released*, gathered images when their all-gather is. With the optimizer sharded over
// replicas, reduce-scatters over them replace all-reduces.
//
// The context owns four parts, each with one job, and the state that they share (PipelineState):
//
//   lanes       submit collectives on the lanes of their group and purpose
//   memory      allocates node memory, and frees images when their all-gathers are released
//   reductions  carry gradients from the reduce-scatter to the reduced sum
//   epochs      separate the time in which shards are written from the time in which they are read
//
// Thread safety: none; one thread drives a context.
// Collective: Create and ResetAfterError, by all ranks of the engine; the rest by all ranks of the groups, in
//   one order.
// Lifetime: the engine must outlive the context; the context must outlive everything that acquired memory
//   from it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "sharding/pipeline/pipeline_lanes.h"
#include "sharding/pipeline/pipeline_memory.h"
#include "sharding/pipeline/pipeline_state.h"
#include "sharding/pipeline/reduction_queue.h"
#include "sharding/pipeline/step_epochs.h"

namespace weft {

class CommContext {
 public:
  struct Options {
    ReductionQueue::Bounds bounds = {};
    PipelineLanes::Options lanes = {};
    // True if ranks of the shard group, all on one node, read each other's shards in place: see Note [Shards
    // in place]. REQUIRES: no regather group.
    bool in_place = false;
    std::string model = {};  // Its name, for messages.
  };

  // `replicate_groups`: one for each replicate bucket. Errors: kInvalidArgument (see PipelineLanes::Create),
  // kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CommContext>> Create(CommEngine& engine, ProcessGroup shard_group,
                                                             std::vector<ProcessGroup> replicate_groups,
                                                             const Options& options);
  // Adds the next mesh for groups that are not sharded over the first one. REQUIRES: nothing is in place.
  // Collective: by all ranks of the engine. Errors: as Create.
  absl::Status AddMesh(ProcessGroup shard_group, std::vector<ProcessGroup> replicate_groups,
                       const PipelineLanes::Options& options);

  PipelineState& state() { return *state_; }
  // The lanes of a mesh; of the model's without a number.
  PipelineLanes& lanes(int mesh = 0) { return *lanes_[static_cast<size_t>(mesh)]; }
  int mesh_count() const { return static_cast<int>(lanes_.size()); }
  PipelineMemory& memory() { return *memory_; }
  ReductionQueue& reductions() { return reductions_; }
  StepEpochs& epochs() { return epochs_; }

  // Submits the *written* barrier where shards are read in place. Due before every forward. REQUIRES: this
  // rank has written its shards; it does not write them again before FinishBackward.
  void BeginForward();
  // Completes every reduction in order, runs their hooks, and waits until no peer reads any buffer or shard
  // of this rank. Afterwards gradients may be read and shards written. Due after the last backward before
  // shards are written, and after anything else that gathers. REQUIRES: all groups are resharded.
  absl::Status FinishBackward();
  // Waits until no peer reads an image, or a shard through a gather. Returns early after a failure, which the
  // state keeps.
  void AwaitReleases();
  // Forgets everything under way and resets the engine. The owner of the groups must reshard them.
  absl::Status ResetAfterError();
  // The first failure since then, or OK.
  const absl::Status& status() const { return state_->status(); }

 private:
  CommContext(std::unique_ptr<PipelineState> state, std::unique_ptr<PipelineMemory> memory,
              std::unique_ptr<PipelineLanes> lanes, const Options& options);

  const std::unique_ptr<PipelineState> state_;
  const std::unique_ptr<PipelineMemory> memory_;
  std::vector<std::unique_ptr<PipelineLanes>> lanes_;  // By mesh.
  ReductionQueue reductions_;
  StepEpochs epochs_;
};

}  // namespace weft
