// Engine of asynchronous collectives: moves weights, gradients and sequences between ranks.
//
//   auto engine = CommEngine::Create(bootstrap, heap).value();
//   LaneId lane = engine->AddLane(group, LanePurpose::kAllGather).value();
//   Work gather = engine->AllGather(lane, shard, weights, DType::kBF16, count);  // Returns at once.
//   // ... compute ...
//   absl::Status gathered = gather.Wait();  // `weights` are valid.
//
// Collectives are submitted to lanes. A progress thread executes them; a waiting thread runs the progress
// loop itself. Operations of one lane start in the order of submission. Operations of different lanes are
// ordered only by priority, by `after` and by gates.
//
// Peers on the same node read and write buffers in the engine's NodeHeap in place. Other buffers are staged
// through it, which copied_bytes counts. docs/engine.md describes the protocol.
//
// Thread safety: any thread may call any member, except that no thread calls another one during
//   ResetAfterError or the destructor. The calls of a rank happen in some order, and this order counts for
//   the rules below: threads that submit to one lane must agree on theirs, for example by a lock.
// Collective: Create, AddLane, SharedLane and ResetAfterError, by all ranks of the bootstrap in the same
//   order; GroupLane, by the members of its group; every collective, by all ranks of its lane's group in the
//   same order.
// Lifetime: bootstrap and heap must outlive the engine, and the engine its Works. An engine's flags stay
//   allocated until the heap is destroyed: 25 KiB a rank, 2.1 KiB for each rank of the node, and about
//   2.2 KiB for each lane (docs/engine.md). Prefer one engine with SharedLane; after a failure,
//   ResetAfterError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/comm/engine_options.h"
#include "weft/comm/engine_trace.h"
#include "weft/comm/part_ranges.h"
#include "weft/comm/source_views.h"
#include "weft/comm/types.h"
#include "weft/comm/work.h"
#include "weft/core/tensor_view.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/process_group.h"

namespace weft {

// Gathers a blob of every member of a group: called with this rank's blob, it returns the blobs of all
// members, by group rank. A caller implements it over what it shares with the members, such as a key-value
// store. It must have a deadline, and its error should name the missing ranks. Each call must gather blobs of
// this call alone: use other keys for each.
using GroupExchange = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view blob)>;

class CommEngine {
 public:
  // Errors, on every rank: kInvalidArgument (an option of some rank is out of range, or differs between
  //   ranks; share domain kNuma, but ranks are not bound), kResourceExhausted (no node memory for flags,
  //   or no thread; names the limits), kDeadlineExceeded (names the missing ranks), kInternal (ranks are in
  //   different exchanges, or the transport failed).
  static absl::StatusOr<std::unique_ptr<CommEngine>> Create(Bootstrap& bootstrap, NodeHeap& heap,
                                                            const EngineOptions& options = {});
  // Tells the peers of every lane that this rank submits nothing more: operations that still need it then
  // fail on them. Waits for unfinished operations, up to the engine's timeout; aborts the engine if some
  // remain. Waits up to five seconds more for peers to consume operations, and for messages in flight. Then
  // stops the threads. Does not wait if a Wait for one of them has missed the engine's timeout. With the
  // watchdog, a missed deadline ends the process here.
  ~CommEngine();

  // Adds a lane, named "<group name>/<purpose>". Ranks of other groups add the lane of their own group at the
  // same position in the order of calls. A call that fails may use up a lane.
  // Errors, also those of other ranks: kInvalidArgument (the rank is not in its group, or the group has a
  //   rank twice or one that is not in the job), kResourceExhausted (too many lanes, or no node memory);
  //   kDeadlineExceeded (names the missing ranks).
  absl::StatusOr<LaneId> AddLane(const ProcessGroup& group, LanePurpose purpose);
  // The lane with this `number` of a group and purpose, which is added at the first call. Later calls return
  // the same lane, so that models that live one after the other use no more lanes than one of them.
  // REQUIRES: all users of a lane together submit in one order, on all ranks.
  // Errors: those of AddLane.
  absl::StatusOr<LaneId> SharedLane(const ProcessGroup& group, LanePurpose purpose, int number = 0);
  // The lane of a group that its members alone know of. As SharedLane, returns the same lane again for the
  // same ranks, purpose and `number`, if all members have it. Other ranks take no part: each may have any
  // such lanes, in any order.
  //
  // REQUIRES: all members call it with the same ranks, purpose and number. Groups that share two or more
  //   ranks are formed in one order on these: a rank is in one call at a time, and waits in `exchange` for
  //   the other members. A cycle ends by the deadline of `exchange`, and adds no lane.
  // Collective: the members of `group`.
  // Errors: those of `exchange`, with the group and its ranks in front; those of AddLane on any member;
  //   kFailedPrecondition (members form different lanes; names both).
  absl::StatusOr<LaneId> GroupLane(const ProcessGroup& group, LanePurpose purpose, int number,
                                   const GroupExchange& exchange);
  // REQUIRES: `lane` is one of this engine.
  const ProcessGroup& group(LaneId lane) const;

  // For all collectives and messages below:
  //   - REQUIRES: a buffer, view or part that has elements begins at a multiple of their size, and has at
  //     most 32 TiB. Both are checked.
  //   - `counts` are the elements of each group rank's part. Parts lie end to end in rank order. Empty: equal
  //     parts. REQUIRES: the counts add up to the total; without counts, the group size divides it.
  //   - `after` is an earlier Work of this engine. The operation starts once that is *ready* on this rank.
  //   - An invalid argument returns a failed Work and aborts the engine, as Abort does. No data moves.

  // `output` = all inputs, in rank order. In place: input == output + this rank's offset.
  Work AllGather(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                 absl::Span<const int64_t> counts = {}, OpOptions options = {}, const Work* after = nullptr);

  // AllGather into one `output` for each share domain (share_domains), which the group's ranks in the domain
  // share (a SharedBlock). Each part is written once, by its owner, by the rank that receives it from another
  // node, or by one that copies it from another domain of the node. *Ready* means that the whole output is
  // valid. In place for each rank: input == output + this rank's offset.
  //
  // The gather writes nothing until it has started on every rank of the node: each has submitted it, and its
  // `options.gate` is *released* there. REQUIRES: by then, this rank no longer reads the block. An
  // out-of-place gather never reads `output`. The gather that follows it may therefore fill the block as soon
  // as every rank has finished reading the block and has submitted that gather. If the group has several
  // domains on a node, ranks of the other domains read the block until the gather that filled it is *ready*
  // on them. REQUIRES, then: each rank submits the gather that fills any of these blocks again after that.
  Work AllGatherShared(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                       absl::Span<const int64_t> counts = {}, OpOptions options = {},
                       const Work* after = nullptr);

  // In-place AllGather of f32 with delta encoding: with compression, parts travel between nodes as the
  // difference from values that every output already holds. After an optimizer step that takes about two
  // thirds of the bytes.
  //
  // `base` holds the values of this rank's part that the outputs of all other ranks have. Once *released*, it
  // holds the part's new values. REQUIRES: since the last gather, only the owner of a part has written it; if
  // several ranks of the group share a node, `output` lies in node memory.
  // Errors: kInternal (a rank other than its owner has written a part; detected when a delta of the part
  // arrives from another node). After a failure of the engine, `base` and outputs are undefined.
  Work AllGatherDelta(LaneId lane, void* base, void* output, int64_t total_count,
                      absl::Span<const int64_t> counts = {}, OpOptions options = {},
                      const Work* after = nullptr);

  // `output` = this rank's part of the reduction of all inputs. In place: output == input + this rank's
  // offset. The order of additions depends on the group size alone; see docs/engine.md.
  Work ReduceScatter(LaneId lane, const void* input, void* output, DType dtype, int64_t total_count,
                     ReduceOp op, absl::Span<const int64_t> counts = {}, OpOptions options = {},
                     const Work* after = nullptr);

  // The collectives above with parts that are ranges of the whole buffer: of `output` in a gather, of `input`
  // in a reduce-scatter. `input` of a gather, `output` of a reduce-scatter, and the delta base have the
  // elements of this rank's part end to end. In place for gathers only: input == output. Sums have the same
  // bits as with parts end to end.
  //
  // Within a node, peers read the ranges in place. Between nodes, a slice that one range holds is sent and
  // received where it lies. Any other slice is packed and unpacked, which copied_bytes counts.
  // REQUIRES: `parts` is the same on all ranks; if several ranks of the group share a node, the whole buffer,
  // and the input of a gather, lie in node memory.
  Work AllGather(LaneId lane, const void* input, void* output, DType dtype,
                 std::shared_ptr<const PartRanges> parts, OpOptions options = {},
                 const Work* after = nullptr);
  Work AllGatherShared(LaneId lane, const void* input, void* output, DType dtype,
                       std::shared_ptr<const PartRanges> parts, OpOptions options = {},
                       const Work* after = nullptr);
  Work AllGatherDelta(LaneId lane, void* base, void* output, std::shared_ptr<const PartRanges> parts,
                      OpOptions options = {}, const Work* after = nullptr);
  Work ReduceScatter(LaneId lane, const void* input, void* output, DType dtype, ReduceOp op,
                     std::shared_ptr<const PartRanges> parts, OpOptions options = {},
                     const Work* after = nullptr);

  // The same over an input that lies in views instead of one block, such as gradients where they were
  // computed. Sums have the same bits. Within a node, peers read views that lie in node memory in place;
  // others are copied there first. Between nodes, a slice of one view is sent where it lies. copied_bytes
  // counts the copies, and slices that are packed. `input` is only read by the call, the views until
  // *released*.
  // REQUIRES: views are in ascending order, and their ranges are the same on all ranks; `parts` is made with
  // CutsOf them.
  Work ReduceScatter(LaneId lane, absl::Span<const SourceView> input, void* output, DType dtype, ReduceOp op,
                     std::shared_ptr<const PartRanges> parts, OpOptions options = {},
                     const Work* after = nullptr);

  // `output` = the reduction of all inputs, in the order of additions of ReduceScatter. In place:
  // input == output.
  Work AllReduce(LaneId lane, const void* input, void* output, DType dtype, int64_t count, ReduceOp op,
                 OpOptions options = {}, const Work* after = nullptr);

  // Sends `sends[j]` to group rank j and receives `receives[i]` from group rank i. Parts are strided views of
  // up to five dims. An undefined or empty view is an empty part.
  // REQUIRES: both ends of a part have the same shape; receives overlap neither each other nor sends.
  //
  // Within a node, the receiver copies a part from the sender's layout to its own in one pass. A part outside
  // node memory is first packed into it. Between nodes, parts travel in slices, which are packed and unpacked
  // unless the part is contiguous. Packing and unpacking count in copied_bytes.
  Work AllToAll(LaneId lane, absl::Span<const TensorView> sends, absl::Span<const TensorView> receives,
                DType dtype, OpOptions options = {}, const Work* after = nullptr);

  // AllToAll of contiguous parts that lie end to end. Each list has a count for every group rank.
  Work AllToAll(LaneId lane, const void* input, absl::Span<const int64_t> send_counts, void* output,
                absl::Span<const int64_t> receive_counts, DType dtype, OpOptions options = {},
                const Work* after = nullptr);

  // Sends one part to group rank `to` and receives one from group rank `from`: a ring shift, or an exchange
  // of pairs. Equals AllToAll with all other parts empty. Collective: every rank of the group.
  Work SendReceive(LaneId lane, const TensorView& send, int to, const TensorView& receive, int from,
                   OpOptions options = {}, const Work* after = nullptr);

  // Copies the buffer of group rank `root` to every rank.
  Work Broadcast(LaneId lane, void* buffer, DType dtype, int64_t count, int root, OpOptions options = {},
                 const Work* after = nullptr);

  // *Ready* once every rank of the group has submitted it.
  Work Barrier(LaneId lane, OpOptions options = {}, const Work* after = nullptr);

  // Point-to-point messages, which no other rank submits. A send and a receive match if channel and tag are
  // equal, and each names the other's rank or the receive accepts any. Matching follows the order of
  // submission, of the sends between two ranks on one channel and tag, and of the receives of a rank. Either
  // end may be submitted first, and any number may be outstanding. A rank may send to itself.
  //
  // Both Works are *ready* and *released* at once: a send when its data has been read, which is after the
  // receive has matched; a receive when its data is valid. REQUIRES: an empty `options.gate` and no wire
  // compression. On a node, data is copied once if either buffer is node memory, else twice, which
  // copied_bytes counts. Between nodes it is received in place.
  // Errors, also on the peer: kFailedPrecondition (a send and a receive match, but their sizes, dtypes or
  //   identities differ; names both), kAborted (the peer has destroyed its engine; of a receive from any
  //   rank, all other ranks have).
  Work Send(const MessageAddress& to, const void* data, DType dtype, int64_t count, OpOptions options = {});
  Work Receive(const MessageAddress& from, void* data, DType dtype, int64_t count, OpOptions options = {});

  // OK, or the failure after which the engine accepts no more work.
  absl::Status status() const;
  // Fails all unfinished operations, on this rank and on all others. Only the first cause is kept.
  // REQUIRES: `cause` is an error. OK ends the process: operations that fail with it would seem to be
  // *ready*.
  void Abort(const absl::Status& cause);
  // Ends the failed state on all ranks together: lanes are empty again, and sequences restart.
  // Errors: kDeadlineExceeded (names the missing ranks, or says that a callback of Work::Then has not
  //   returned).
  // REQUIRES: no other thread submits, or calls Work::Then, meanwhile.
  absl::Status ResetAfterError();

  // Totals since Create.
  EngineCounters counters() const;
  // Largest scratch memory in use at once since Create, in bytes.
  size_t scratch_peak_bytes() const;
  // The flight recorder as JSON: the phase, the lanes, and the last operations, with lane, sequence, kind,
  // label, dtype, bytes, state, times and the ranks that they wait for. docs/reliability.md describes it.
  std::string RecorderJson() const;
  // Names what the program does, such as "step 12", in the flight recorder. Any thread.
  void SetPhase(std::string phase);
  // Records a trace of this rank from StartTrace to StopTrace, which returns it. StartTrace drops a trace
  // that is being recorded. Other ranks need not trace. Thread safety: any thread.
  void StartTrace();
  EngineTrace StopTrace();

  Bootstrap& bootstrap() const;
  // Share domains of the job, and why they were chosen.
  const ShareDomains& share_domains() const;
  NodeHeap& heap() const;
  const EngineOptions& options() const;
  // That of the options, or the default if they have none.
  absl::Duration timeout() const;

 private:
  friend class Work;
  friend class EngineWithRules;  // Test seam.
  class Impl;
  explicit CommEngine(std::unique_ptr<Impl> impl);
  struct GatherBuffers {
    const void* input;  // Null for AllGatherDelta, which is in place.
    void* output;
    void* base;  // Null unless AllGatherDelta.
  };
  Work SubmitGather(LaneId lane, OpKind kind, const GatherBuffers& buffers, DType dtype, int64_t total_count,
                    absl::Span<const int64_t> counts, OpOptions options, const Work* after);
  Work SubmitGather(LaneId lane, OpKind kind, const GatherBuffers& buffers, DType dtype,
                    std::shared_ptr<const PartRanges> parts, OpOptions options, const Work* after);
  // `input(ranges, request)` checks and sets the input.
  template <typename Input>
  Work SubmitReduceScatter(LaneId lane, const Input& input, void* output, DType dtype, ReduceOp op,
                           std::shared_ptr<const PartRanges> parts, OpOptions options, const Work* after);
  template <typename Build>
  Work SubmitChecked(LaneId lane, OpOptions options, const Work* after, const Build& build);
  template <typename Parts>
  Work SubmitExchange(LaneId lane, OpKind kind, DType dtype, OpOptions options, const Work* after,
                      const Parts& parts);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
