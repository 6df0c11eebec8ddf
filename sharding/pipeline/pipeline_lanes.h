// Process groups of a sharded model and the lanes on which their collectives run.
//
// Each kind of collective has lanes of its own, so that the all-reduce of one parameter group overlaps the
// reduce-scatter of the next. A function that starts a collective submits one operation, and counts
// all-gathers, reduce-scatters and all-reduces.
//
// All models of an engine share the lanes of a group and purpose (CommEngine::SharedLane). A model that is
// created later adds no lanes, and the collectives of several models keep one order.
//
// Thread safety: none.
// Collective: Create, by all ranks of the engine; the rest, by all ranks of the named group, in one order.
// Lifetime: the state must outlive the lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "sharding/pipeline/lane_round_robin.h"
#include "sharding/pipeline/pipeline_memory.h"
#include "sharding/pipeline/pipeline_state.h"
#include "sharding/pipeline/transfer.h"
#include "sharding/plan/replica_slices.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/custom_collectives.h"

namespace weft {

class PipelineLanes {
 public:
  struct Options {
    // Sizes of the regather groups: consecutive ranks of the shard group, whose size each divides. Each size
    // once, alike on all ranks.
    std::vector<int> regather_sizes = {};
    // See ShardingPolicy.
    bool shard_optimizer_over_replicas = false;
    // Compression between nodes of weights, gradients and updates.
    WireCompression wire_compression = WireCompression::kNone;
  };

  // `replicate_groups`: one for each replicate bucket; a bucket whose group has one rank is only
  // reduce-scattered. Errors: kInvalidArgument (a regather size that does not divide the shard group, or is
  // 1). `memory`: gives kScalarBytes for AllReduceScalars.
  static absl::StatusOr<PipelineLanes> Create(PipelineState& state, PipelineMemory& memory,
                                              ProcessGroup shard_group,
                                              std::vector<ProcessGroup> replicate_groups,
                                              const Options& options);

  const ProcessGroup& shard_group() const { return shard_group_; }
  // This rank's regather group of `size` ranks. REQUIRES: there is one.
  const ProcessGroup& regather_group(int size) const { return regathers_.at(size).group; }
  const ProcessGroup& replicate_group(int bucket) const {
    return replicate_groups_[static_cast<size_t>(bucket)];
  }
  bool shards_optimizer_over_replicas() const { return options_.shard_optimizer_over_replicas; }
  // Slices of a group's shard that this rank updates; `dtype`: reduce dtype of the group.
  std::vector<ReplicaSlice> SlicesOf(const FlatLayout& layout, DType dtype) const;
  // Lane for small values, which callers wait for at once, over the shard group.
  LaneId control_lane() const { return control_lane_; }
  // Lane of the next all-gather over a bucket's replicas. REQUIRES: shards_optimizer_over_replicas().
  LaneId NextUpdateLane(int bucket) { return update_lanes_[static_cast<size_t>(bucket)].Next(); }

  // The parts of a collective in its whole buffer. Null: they lie end to end.
  using Parts = std::shared_ptr<const PartRanges>;

  // Starts an all-gather over the shard group: by `custom` if it is set, else by the engine. `after`: for the
  // engine's all-gather only. REQUIRES: request.group is the shard group. Errors: kFailedPrecondition
  // (`custom` with parts that do not lie end to end).
  absl::StatusOr<Transfer> AllGather(const AllGatherRequest& request, const Parts& parts,
                                     const CustomAllGather& custom = nullptr, const Work* after = nullptr);
  // The same over a regather group. REQUIRES: request.group is one.
  absl::StatusOr<Transfer> Regather(const AllGatherRequest& request, const Parts& parts,
                                    const CustomAllGather& custom = nullptr);
  // Starts an all-gather over the shard group into an image that its ranks of this node share.
  absl::StatusOr<Transfer> AllGatherShared(const AllGatherRequest& request, const Parts& parts,
                                           const Work* after);
  // Submits a barrier to the lanes of all-gathers. Ranks of the shard group that have submitted different
  // all-gathers before it get an error instead of waiting for each other.
  Work BarrierAfterAllGathers(const std::string& label, const Work* after = nullptr);

  struct ReductionStyle {
    double scale = 1.0;  // OpOptions::scale.
    Priority priority = Priority::kReduce;
  };
  // Starts a reduce-scatter over the shard group, by `custom` if it is set, else by the engine. The caller
  // must fail the context if `custom` fails. REQUIRES: a scale of 1 with `custom`.
  absl::StatusOr<Transfer> ReduceScatter(const ReduceScatterRequest& request, const Parts& parts,
                                         const CustomReduceScatter& custom, const ReductionStyle& style);
  // Starts an all-reduce, in place, over the replicas of a bucket.
  Work AllReduce(const std::string& label, int bucket, void* values, DType dtype, int64_t count,
                 const ReductionStyle& style, const Work* after);
  // Starts a reduce-scatter of `slice` over the replicas of its bucket. REQUIRES:
  // shards_optimizer_over_replicas().
  Work ReduceScatterOverReplicas(const std::string& label, const ReplicaSlice& slice, const void* input,
                                 void* output, DType dtype, const ReductionStyle& style, const Work* after);
  // Starts to gather, in place in this rank's shard, the parts of a slice that the other replicas have
  // updated. `base`: the values that they hold of this rank's part, for delta encoding
  // (CommEngine::AllGatherDelta); all replicas give it or none does. `parts`: of the replicas in `shard`, if
  // it is an image in which the shard's elements lie in ranges.
  Work AllGatherUpdates(const std::string& label, const ReplicaSlice& slice, const Parts& parts, float* shard,
                        std::optional<float*> base, Priority priority, const Work* after);
  // True if updates of a bucket are delta-encoded between nodes.
  bool UsesDeltaEncoding(int bucket) const;

  // Reduces a few values in place over the shard group, and waits. REQUIRES: at most kScalarBytes.
  absl::Status AllReduceScalars(const std::string& label, void* values, DType dtype, int64_t count,
                                ReduceOp op);
  static constexpr size_t kScalarBytes = 512;

  // Restarts the round-robin order and the numbering of submissions, after CommEngine::ResetAfterError.
  // Collective: all ranks of the engine.
  void Restart();

 private:
  PipelineLanes(PipelineState& state, ProcessGroup shard_group, std::vector<ProcessGroup> replicate_groups,
                const Options& options);
  absl::Status AddLanes();
  absl::StatusOr<Transfer> SubmitAllGather(LaneRoundRobin& lanes, const AllGatherRequest& request,
                                           const Parts& parts, const CustomAllGather& custom,
                                           const Work* after);
  OpOptions ControlOptions(const std::string& label, Priority priority);
  // Options of operations that move weights, gradients or updates.
  OpOptions DataOptions(const std::string& label, Priority priority);
  OpOptions ReductionOptions(const std::string& label, const ReductionStyle& style);

  PipelineState& state_;
  Buffer scalars_;  // Node memory of AllReduceScalars.
  struct RegatherLanes {
    ProcessGroup group;
    LaneRoundRobin lanes = {};
  };
  ProcessGroup shard_group_;
  std::map<int, RegatherLanes> regathers_;      // By size.
  std::vector<ProcessGroup> replicate_groups_;  // By bucket.
  Options options_;
  LaneRoundRobin all_gather_lanes_, reduce_scatter_lanes_;
  LaneId control_lane_;
  std::vector<LaneRoundRobin> replicate_lanes_;  // By bucket: all-reduces, or reduce-scatters over replicas.
  std::vector<LaneRoundRobin> update_lanes_;     // By bucket: all-gathers of updates.
  uint64_t submissions_ = 0;
};

}  // namespace weft
