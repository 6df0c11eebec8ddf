// The one asynchronous engine that moves weights, gradients and sequences between ranks.
//
// Collectives are submitted to lanes and progress by themselves on a progress thread; a thread that waits
// helps. Within a lane the order of submission is the order of execution, and must be the same on all ranks
// of its group. Between lanes there is no order but priority and `after`.
//
// Buffers that lie in the engine's NodeHeap are read by peers in place; others are staged through it, and the
// staging is counted in copied_bytes. See docs/engine.md for the protocol.
//
// Thread safety: AddLane, Submit-like members and Reset… are called from one thread; statistics from any.
// Collective: Create, AddLane and ResetAfterError (all ranks of the bootstrap, in the same order); every
//   collective by all ranks of its lane's group, in the same order.
// Lifetime: bootstrap and heap must outlive the engine, the engine its Works.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/comm/types.h"
#include "weft/comm/work.h"
#include "weft/core/tensor_view.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/process_group.h"

namespace weft {

struct EngineOptions {
  absl::Duration timeout = absl::Seconds(600);  // Of every Wait that is not given a deadline.
  // What is sent between nodes at once. The default stays, with its header, below the 64 KiB up to which MPI
  // sends over TCP without asking first: larger slices wait for a handshake, behind whatever is in the wire.
  int64_t slice_bytes = int64_t{60} * 1024;
  // Most that one lane may have under way towards a rank; twice that if somebody waits for it, as its share
  // of the wire is its share of what is under way.
  int64_t lane_window_bytes = int64_t{512} * 1024;
  // The same for all lower lanes together while a higher one has work.
  int64_t yield_window_bytes = int64_t{64} * 1024;
  // And at any time for all that nobody waits for, on an engine with a lane for context between nodes: what
  // an exchange may find before it in the wire.
  int64_t background_window_bytes = int64_t{256} * 1024;
  int64_t piece_bytes =
      int64_t{256} * 1024;  // Most that is moved within a node between two looks at priorities.
  int recorder_entries = 512;
  // On: past the timeout of an operation a thread that makes no MPI call writes the flight recorder and ends
  // the process with _exit(86). Off for ranks that are threads of one process.
  bool watchdog = false;
  std::string recorder_path;  // JSON file of the watchdog; empty: standard error.
  // Leaves the first operation of a lane without the credit that Note [Credits] promises it: for the test
  // that shows that the simulator notices.
  bool starve_heads = false;
};

// Bytes and times since the engine was made (monotonic; take differences).
struct EngineCounters {
  // What the algorithm must bring to this rank, by purpose of the lane: the sum of its peers' parts.
  int64_t all_gather_bytes = 0;
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t context_bytes = 0;
  int64_t control_bytes = 0;
  int64_t wire_bytes = 0;        // Handed to the link between nodes by this rank,
  int64_t wire_saved_bytes = 0;  // and how many more there would have been without compression.
  // Staged or converted by the engine; 0 where every buffer is in node memory, and what travels between nodes
  // is contiguous. Compression is no copy.
  int64_t copied_bytes = 0;
  int64_t operations = 0;  // Finished.
  // Most that was under way of what had been asked of other nodes while a more urgent lane wanted the wire.
  // At most the larger of yield_window_bytes and a slice, and a slice for each phase (two) of each lane.
  int64_t yielded_peak_bytes = 0;
  int64_t wait_ns = 0;  // Spent in Wait: communication that was not hidden.
};

class CommEngine {
 public:
  // Errors: kInvalidArgument (an option that makes no sense), kResourceExhausted (no node memory for flags).
  static absl::StatusOr<std::unique_ptr<CommEngine>> Create(Bootstrap& bootstrap, NodeHeap& heap,
                                                            const EngineOptions& options = {});
  // Waits for what is under way (to the timeout), then stops the threads.
  ~CommEngine();

  // Adds the lane of this rank's own group; the others add theirs at the same place of the order. The name of
  // the lane is "<group name>/<purpose>". Errors: kInvalidArgument (rank not in the group),
  // kResourceExhausted (too many lanes).
  absl::StatusOr<LaneId> AddLane(const ProcessGroup& group, LanePurpose purpose);
  const ProcessGroup& group(LaneId lane) const;

  // In all of these: `counts` are elements for each group rank, or empty for equal parts (then the total must
  // divide); parts lie end to end in rank order. `after`: this starts when that earlier Work of
  // this engine is *ready*. Invalid arguments give a Work that has failed, and fail the engine as Poison
  // does: nothing is ever sent for it.

  // output = every rank's input, end to end. In place: input == output + this rank's offset.
  Work AllGather(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                 absl::Span<const int64_t> counts = {}, OpOptions options = {}, const Work* after = nullptr);

  // The same into one `output` for all ranks of a node: a block of node memory (a SharedBlock) that the
  // group's ranks there hold together, and in which every part is written once, by its owner or by the rank
  // that receives it from another node. *Ready* when all of it is, whoever wrote it. In place for each rank:
  // input == output + this rank's offset. Nothing is written, by other nodes' parts neither, before every
  // rank of the node has submitted it and its `options.gate` is released there: what a rank reads of the
  // block it must have done with by then. Out of place nothing is read from the output either: it may be
  // filled again by a gather that every rank submits when it has done with this one's values.
  Work AllGatherShared(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                       absl::Span<const int64_t> counts = {}, OpOptions options = {},
                       const Work* after = nullptr);

  // In place, of f32 of which the outputs hold an older state: `before` is what every other rank's output
  // holds in place of this rank's part, and when this is *released*, it is what this rank's part is.
  // Compressed, parts travel between nodes as their changes, of which an optimizer's take about two thirds of
  // the bytes. Only the owner of a part may have written it since the outputs got it. Where a node has
  // several ranks of the group, the output lies in node memory. After any failure of the engine, `before` and
  // outputs are to be taken for unknown. Errors: kInternal (somebody else has written a part, found out where
  // changes arrive from another node; some of the part is overwritten then).
  Work AllGatherDelta(LaneId lane, void* before, void* output, int64_t total_count,
                      absl::Span<const int64_t> counts = {}, OpOptions options = {},
                      const Work* after = nullptr);

  // output = this rank's part of the reduction of all inputs. In place: output == input + this rank's offset.
  Work ReduceScatter(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                     ReduceOp op, absl::Span<const int64_t> counts = {}, OpOptions options = {},
                     const Work* after = nullptr);

  // output = the reduction of all inputs. In place: input == output. The reduction order is that of
  // ReduceScatter.
  Work AllReduce(LaneId lane, const void* input, void* output, DType dtype, int64_t count, ReduceOp op,
                 OpOptions options = {}, const Work* after = nullptr);

  // Part j of `sends` goes to rank j, part i of `receives` comes from rank i. Parts are strided views of up
  // to five dims; what a rank receives must have the shape that its peer sends, and an undefined or empty
  // view is an empty part. Sends may overlap each other, receives neither each other nor sends.
  //
  // Within a node a part is read where it lies, in one strided copy; one outside node memory is packed into
  // it first. Between nodes parts travel in slices, which are packed and unpacked where a part is not one
  // contiguous run. Both counts as copied.
  Work AllToAll(LaneId lane, absl::Span<const TensorView> sends, absl::Span<const TensorView> receives,
                DType dtype, OpOptions options = {}, const Work* after = nullptr);

  // The same of contiguous parts end to end: a count for every rank in each list.
  Work AllToAll(LaneId lane, const void* input, absl::Span<const int64_t> send_counts, void* output,
                absl::Span<const int64_t> receive_counts, DType dtype, OpOptions options = {},
                const Work* after = nullptr);

  // One part to group rank `to`, one from group rank `from`: a ring's shift, an exchange of pairs. What
  // AllToAll does where all other parts are empty; every rank of the group submits it.
  Work SendReceive(LaneId lane, const TensorView& send, int to, const TensorView& receive, int from,
                   OpOptions options = {}, const Work* after = nullptr);

  // The root's buffer on every rank. `root` is a group rank.
  Work Broadcast(LaneId lane, void* buffer, DType dtype, int64_t count, int root, OpOptions options = {},
                 const Work* after = nullptr);

  // *Ready* when every rank of the group has submitted it.
  Work Barrier(LaneId lane, OpOptions options = {}, const Work* after = nullptr);

  // OK, or why the engine takes no more work.
  absl::Status status() const;
  // Makes every operation under way fail here and at all ranks that this one talks to.
  void Poison(const absl::Status& cause);
  // All ranks leave the failed state together: lanes are empty again, sequences start anew.
  // Errors: kDeadlineExceeded (names the ranks that have not come).
  absl::Status ResetAfterError();

  EngineCounters counters() const;
  size_t scratch_peak_bytes() const;
  // The flight recorder: the last operations with lane, sequence, kind, bytes, dtype, state and times, as
  // JSON.
  std::string RecorderJson() const;

  Bootstrap& bootstrap() const;
  NodeHeap& heap() const;
  const EngineOptions& options() const;

 private:
  friend class Work;
  class Impl;
  explicit CommEngine(std::unique_ptr<Impl> impl);
  // Of a gather of changes there is no input, as it is in place; of others no older state.
  struct GatherMemory {
    const void* input;
    void* output;
    void* before;
  };
  Work SubmitGather(LaneId lane, OpKind kind, const GatherMemory& memory, DType dtype, int64_t total_count,
                    absl::Span<const int64_t> counts, OpOptions options, const Work* after);
  template <typename Build>
  Work SubmitChecked(LaneId lane, OpOptions options, const Work* after, const Build& build);
  template <typename Parts>
  Work SubmitExchange(LaneId lane, OpKind kind, DType dtype, OpOptions options, const Work* after,
                      const Parts& parts);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
