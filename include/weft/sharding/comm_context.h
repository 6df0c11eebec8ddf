// The communication pipeline of one sharded model: its lanes, its buffers, and the reductions that are under
// way.
//
// In backward a group's reduce-scatter and the all-reduces of its replicate buckets are submitted together,
// in program order; each on lanes of its own, so that the all-reduce of one group runs beside the
// reduce-scatter of the next (see Note [When an all-reduce is submitted] in reduction_queue.h for the one
// exception). A bounded number of each is in flight: admitting one more first completes the oldest. Full
// gradients go back to their pool when their reduce-scatter is *released*, gathered images when their
// all-gather is. With the optimizer sharded over replicas, reduce-scatters over them stand for all-reduces.
//
// Thread safety: none; one thread drives a context.
// Collective: Create and ResetAfterError, by all ranks of the engine; the rest by all ranks of the groups, in
//   one order.
// Lifetime: the engine must outlive the context, the context everything that acquired buffers from it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/custom_collectives.h"
#include "weft/sharding/lane_round_robin.h"
#include "weft/sharding/reduction.h"

namespace weft {

class ShardFences;
class SharedBlock;
struct ImageRegion;

// What sharding did since the context was made (monotonic; take differences).
struct ShardingCounters {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t copied_bytes = 0;     // Written by copies and casts beside the collectives.
  int64_t unshared_images = 0;  // Gathered by each rank for itself: there was no room left in the region.
};

class CommContext {
 public:
  struct Options {
    int max_reduce_scatters = 2;
    int max_all_reduces = 2;
    // Ranks of the groups that Regather works in: neighbours in the shard group, whose size this divides. 0:
    // there are none.
    int regather_size = 0;
    // Whether ranks of the shard group, all on one node, read each other's shards in place: see Note [Shards
    // in place]. Then there is no regather group.
    bool in_place = false;
    // See ShardingPolicy.
    bool shard_optimizer_over_replicas = false;
    // Of weights, gradients and updates.
    WireCompression wire_compression = WireCompression::kNone;
  };

  // `replicate_groups`: one for each bucket; buckets of groups of size 1 are only reduce-scattered. Errors:
  // kInvalidArgument (a regather size that cannot be).
  static absl::StatusOr<std::unique_ptr<CommContext>> Create(CommEngine& engine, ProcessGroup shard_group,
                                                             std::vector<ProcessGroup> replicate_groups,
                                                             const Options& options);
  ~CommContext();

  CommEngine& engine() { return engine_; }
  const ProcessGroup& shard_group() const { return shard_group_; }
  // This rank's; of size 0 where there is none.
  const ProcessGroup& regather_group() const { return regather_group_; }
  // Of a bucket, with this rank's place in it.
  const ProcessGroup& replicate_group(int bucket) const {
    return replicate_groups_[static_cast<size_t>(bucket)];
  }
  int bucket_count() const { return static_cast<int>(replicate_groups_.size()); }
  bool shards_optimizer_over_replicas() const { return options_.shard_optimizer_over_replicas; }
  // What this rank updates of a group that is reduced in `dtype`, as the options say.
  std::vector<ReplicaSlice> SlicesOf(const FlatLayout& layout, DType dtype) const;

  // Starts an all-gather over the shard group or the regather group, which are named by reference: the
  // engine's, or `custom` if there is one. `after`: of the engine's only.
  absl::StatusOr<Transfer> AllGather(const AllGatherRequest& request, const CustomAllGather& custom = nullptr,
                                     const Work* after = nullptr);
  // The same over the shard group, into an image that its ranks of this node have together.
  absl::StatusOr<Transfer> AllGatherShared(const AllGatherRequest& request, const Work* after);
  // From now on images are gathered into `region`, which the `holders` ranks of the shard group that are on
  // this node hold. Its bytes count as images, in equal shares, whether they are in use or not. Before groups
  // are made.
  void ShareImages(SharedBlock region, int holders);
  // Null unless images are shared on nodes.
  ImageRegion* image_region() { return region_.get(); }
  // Null unless shards are read in place.
  ShardFences* shard_fences() { return fences_.get(); }
  // A point between all-gathers: ranks of the shard group that come to it after different ones get an error.
  Work FenceAllGathers(const std::string& label, const Work* after = nullptr);
  // This rank has written its shards, and reads those of others from now on, until FinishBackward: due before
  // every forward.
  void BeginForward();
  // Submits a reduction, and returns; completes older ones to keep the bounds.
  absl::Status Reduce(Reduction reduction);
  // Completes every reduction, in order, runs their hooks, and waits until no peer reads any buffer or shard
  // of this rank: afterwards gradients may be read, and shards written. Due after the last backward before
  // shards are written, and after whatever else has gathered; groups must be resharded.
  absl::Status FinishBackward();

  // Counts the times in which shards could be written.
  uint64_t write_epoch() const { return write_epoch_; }
  // Starts to gather, in place in this rank's shard, what each replica has updated of a slice. The work stays
  // until FinishBackward. `before`, which all replicas give or none: what the others have of what this one
  // updates, for CommEngine::AllGatherDelta.
  Work* AllGatherUpdates(const std::string& label, const ReplicaSlice& slice, float* shard,
                         std::optional<float*> before, Priority priority, const Work* after);
  // Whether updates of a bucket cross nodes compressed, so that it pays to know what the others have.
  bool UsesDeltaEncoding(int bucket) const;

  // A reduction in place, of at most 512 bytes over the shard group, that everybody waits for.
  absl::Status AllReduceScalars(const std::string& label, void* values, DType dtype, int64_t count,
                                ReduceOp op);

  // The fp32 values of all ranks of the shard group, end to end; `counts`: of each. `first_alone`: only the
  // group's first rank receives them. Waited for, and exchanged through a little node memory.
  absl::Status GatherValues(const std::string& label, const float* own, float* all,
                            absl::Span<const int64_t> counts, bool first_alone);
  // The same of the replicas of a bucket, for all of them. Only where they share the optimizer.
  absl::Status GatherReplicaValues(const std::string& label, int bucket, const float* own, float* all,
                                   absl::Span<const int64_t> counts);

  // Blocks of node memory. An image may wait for those that were retired before: see Note [Retired images].
  absl::StatusOr<Buffer> AcquireImage(size_t bytes);
  absl::StatusOr<Buffer> AcquireGradients(size_t bytes);
  absl::StatusOr<Buffer> AcquireShard(size_t bytes);
  // Gives an image back as soon as the gather that filled it (an empty one: none) is released.
  void Retire(Transfer gather, Buffer image);

  // Waits until no peer reads an image, or a shard through a gather, any more; or until the engine has
  // failed.
  void AwaitReleases();

  // OK, or the first error, as every later call returns it.
  const absl::Status& status() const { return status_; }
  // Keeps the cause of the first failure, and makes peers fail rather than wait.
  void Stop(const absl::Status& cause);
  // The same; returns the error as every later call does.
  absl::Status Fail(const absl::Status& cause);
  // Forgets what was under way and resets the engine. Groups must be resharded by their owner.
  absl::Status ResetAfterError();

  ShardingCounters counters() const { return counters_; }
  void CountCopy(int64_t bytes) { counters_.copied_bytes += bytes; }
  void CountUnsharedImage() { ++counters_.unshared_images; }
  // This rank's shards that lie in blocks which it holds with others; less, if negative.
  void CountResident(int64_t bytes) { resident_bytes_ += static_cast<size_t>(bytes); }
  // Memory in gathered images and parts of them, those included that wait to be released.
  size_t image_bytes() const { return images_.in_use_bytes() + region_bytes_; }
  // Largest memory in gathered images, in full gradients, and in what lies by shard (masters, sums of
  // gradients) since ResetPeaks.
  size_t image_peak_bytes() const { return images_.peak_bytes() + region_bytes_; }
  size_t gradient_peak_bytes() const { return gradients_.peak_bytes(); }
  size_t shard_peak_bytes() const { return shards_.peak_bytes() + resident_bytes_; }
  size_t shard_bytes() const { return shards_.in_use_bytes() + resident_bytes_; }
  void ResetPeaks();

 private:
  class ReductionQueue;
  struct Retired {
    Buffer image;
    Transfer gather;
  };

  CommContext(CommEngine& engine, ProcessGroup shard_group, std::vector<ProcessGroup> replicate_groups,
              const Options& options);
  absl::Status AddLanes();
  void RestartRoundRobin();
  OpOptions Label(const std::string& label, Priority priority);
  // The same of what moves weights, gradients or updates.
  OpOptions Carry(const std::string& label, Priority priority);
  // Whom values are gathered from.
  struct ValueSource {
    LaneId lane;
    int rank;  // This rank's place among them.
    bool first_alone;
  };
  absl::Status GatherValues(const std::string& label, const ValueSource& source, const float* own, float* all,
                            absl::Span<const int64_t> counts);
  // One window of them: `counts` of each rank, which lie end to end in `window`.
  absl::Status GatherWindow(const std::string& label, const ValueSource& source, const float* own,
                            std::byte* window, absl::Span<const int64_t> counts);
  absl::Status TakeBackOldestImage();
  absl::Status MakeRoomForImage(size_t bytes);
  absl::Status TakeBackReleasedImages();
  // Waits until a Work or Transfer is released; fails with it.
  template <typename Pending>
  absl::Status Settle(Pending& pending) {
    const absl::Status released = pending.WaitReleased();
    return released.ok() ? released : Fail(released);
  }

  CommEngine& engine_;
  ProcessGroup shard_group_;
  ProcessGroup regather_group_;
  std::vector<ProcessGroup> replicate_groups_;
  Options options_;
  LaneRoundRobin all_gather_lanes_, regather_lanes_, reduce_scatter_lanes_;
  LaneId control_lane_;
  // By bucket: all-reduces, or the reduce-scatters that stand for them; then all-gathers of updates.
  std::vector<LaneRoundRobin> replicate_lanes_, update_lanes_;
  BufferPool images_, gradients_, shards_;
  Buffer scalars_;
  std::unique_ptr<ReductionQueue> reductions_;
  std::unique_ptr<ShardFences> fences_;
  std::unique_ptr<ImageRegion> region_;
  size_t region_bytes_ = 0;      // This rank's share of it.
  std::deque<Retired> retired_;  // Oldest first.
  size_t resident_bytes_ = 0;
  std::deque<Work> updates_;  // Gathers of updates since the last FinishBackward.
  uint64_t write_epoch_ = 0;
  uint64_t submissions_ = 0;
  ShardingCounters counters_;
  absl::Status status_;
};

}  // namespace weft
