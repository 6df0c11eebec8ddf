// Staged phase: moves an all-gather, reduce-scatter or all-reduce of a group on one node, if some rank has
// large buffers outside of node memory.
//
// Note [Staging rings]
// Problem: peers cannot read a buffer outside of node memory. To copy all of it to node memory first moves
//   every byte through memory twice more, and needs node memory of the buffer's size.
// Rule: a rank copies the pieces that a peer needs into a *staging ring* of kRingPieces pieces in node
//   memory. A counter of the writer tells how many pieces it has written; a counter of each reader tells how
//   many it has read. The writer stays at most kRingPieces ahead of the slowest reader. An input has a ring
//   for each peer that reduces a part of it, or one for all peers that gather it. The output of an all-reduce
//   has one, through which peers gather the reduced part.
// Why it suffices: reader and writer run at the same time, so a piece is still in a cache when it is read. No
//   wait is circular: a rank writes its inputs without waiting for anything but readers, a reader of inputs
//   waits only for writers of the same piece, and a reader of results only for the piece's reduction.
//   In place is safe: a result overwrites a piece of an input only after the piece has been reduced, and it
//   is reduced only after its writer has read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/streams.h"

namespace weft {

class StagedPhase {
 public:
  // Bytes of one ring. `piece_elements` as for the constructor.
  static size_t RingBytes(int64_t piece_elements, DType dtype) {
    return static_cast<size_t>(kRingPieces) *
           RoundUpToCacheLine(static_cast<size_t>(BytesOf(piece_elements, dtype)));
  }

  // Memory that a rank has published: a whole buffer, or its staging rings.
  struct Published {
    const std::byte* data = nullptr;
    bool in_ring = false;
  };
  struct Memory {
    std::byte* input_rings;         // This rank's. Null if peers read its input, or need nothing of it.
    std::byte* output_ring;         // The same for the reduced part of an all-reduce.
    std::vector<Published> inputs;  // By group rank.
    std::vector<Published> outputs;
  };
  // The plan has the buffers of the caller. REQUIRES: all ranks of the group are on this node, and the parts
  // lie end to end. `piece_elements` is the same on all ranks.
  StagedPhase(OperationContext& context, const CollectivePlan& plan, int64_t piece_elements,
              const Memory& memory);
  // Not copyable: tasks hold pointers to the streams.
  StagedPhase(const StagedPhase&) = delete;
  StagedPhase& operator=(const StagedPhase&) = delete;

  // Advances. Returns true if anything moved.
  bool Step(OperationContext& context);
  // The output is valid, and no part of this rank's staged buffers is still to be read.
  bool complete() const;
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  // Copies one part into a ring.
  struct RingWriter {
    CopyStream stream;
    std::vector<int> readers;  // Group ranks.
    int counter;               // Of this rank: written pieces. Of each reader: pieces that it has read.
    int64_t announced = 0;     // Written pieces that the readers know of.
  };
  // Copies a peer's part to this rank's output.
  struct Pull {
    CopyStream stream;
    int owner;                   // Group rank.
    std::optional<int> counter;  // Of the owner: valid pieces. Nothing: all pieces are valid.
    bool is_from_ring;           // The owner overwrites the pieces that this rank has read.
    int64_t announced = 0;       // Read pieces that the owner knows of.
  };

  // Counters. A rank publishes, of the reduction: the pieces of `owner`'s part in its ring for that owner,
  // and the pieces that it has reduced (its own index). Of the gather: the pieces of its own part in its
  // ring, and the pieces that it has read of `owner`'s part.
  static int ReduceCounter(int owner) { return owner; }
  int GatherCounter(int owner) const { return size_ + owner; }

  void PlanReduce(OperationContext& context, const Memory& memory);
  void PlanGather(OperationContext& context, const Memory& memory);
  void AddWriter(OperationContext& context, int part, const std::byte* source, std::byte* ring,
                 std::vector<int> readers, int counter);
  Slicing SlicingOf(int member) const {
    return {plan_.parts.counts[static_cast<size_t>(member)], piece_elements_};
  }
  SliceMemory PartOf(const std::byte* buffer, int member) const {
    return PartMemory(plan_.parts, buffer, member, element_bytes_);
  }
  // A part that lies end to end, or the ring of a part. Either may be memory that is only read.
  SliceMemory MemoryAt(const std::byte* data) const { return {const_cast<std::byte*>(data), element_bytes_}; }
  SliceMemory RingAt(const std::byte* ring) const {
    return {const_cast<std::byte*>(ring), element_bytes_, kRingPieces};
  }
  // Number of the ring of `reader` among the input rings of `writer`.
  static size_t RingIndex(int writer, int reader) {
    return static_cast<size_t>(reader < writer ? reader : reader - 1);
  }
  bool StepWriters(OperationContext& context);
  bool StepReduce(OperationContext& context);
  bool StepGather(OperationContext& context);
  int64_t ReadByAll(const OperationContext& context, const RingWriter& writer) const;

  const CollectivePlan plan_;
  const int64_t piece_elements_;
  const size_t element_bytes_;
  const int size_;
  const int me_;
  std::vector<int> peers_;
  // Deques: tasks hold pointers to the streams.
  std::deque<RingWriter> writers_;
  std::optional<size_t> own_writer_;  // Index of the writer of this rank's own part.
  std::optional<ReduceStream> reduce_;
  std::vector<int> reduced_from_;  // Peers whose inputs are in rings.
  int64_t reduced_announced_ = 0;
  std::deque<Pull> pulls_;
  std::optional<CopyStream> own_copy_;  // An all-gather that is not in place: input to output.
};

}  // namespace weft
