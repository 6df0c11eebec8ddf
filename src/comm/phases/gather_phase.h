// Gather phase: brings every rank's part to every rank. It is the whole of an all-gather, and the second
// phase of an all-reduce.
//
// Note [Relays]
// Problem: if every rank received every remote part, a part would cross the wire once for each rank of a
// node.
// Rule: a remote part crosses the wire once for each node. The part's *leader* on the node receives it into
// its own output and relays it: the other ranks of the node copy it from there, slice by slice, as the
// leader's counter for the part grows.
//
// Note [Shared outputs]
// Problem: if the ranks of a node share one output, copying parts between local peers is unnecessary.
// Rule: a part is written once, by its owner or by its leader. The other local ranks *watch* the writer's
// counter for the part, which the writer sets once, when the part is complete. A part that already lies in
// the output needs no counter: its owner has published the operation.
//
// If a node has several share domains, each has an output of its own. One rank of a domain, its leader for
// the part, copies the part from the domain that has it: from its owner, or slice by slice from the rank that
// receives it from another node. So a part crosses the wire once for each node, and the link between domains
// once for each other domain. Such a leader still reads the output of another domain while ranks of that
// domain are ready. So an output may be filled again only after every rank of the node is ready, which the
// contract of AllGatherShared asks of its callers.
//
// Note [Delta base]
// Problem: delta encoding needs the same base at the sender and at every receiver.
// Rule: the base of a part is the values that the outputs of all other ranks have for it. The owner of the
// part keeps a copy. Slices travel between nodes as deltas against the base. When all slices are sent, the
// owner copies the new part over its base. The operation is *released* only after that.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/container/inlined_vector.h>
#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/sends.h"
#include "src/comm/phases/streams.h"

namespace weft {

// Memory of a local peer that this rank can read.
struct PeerMemory {
  int member;
  const std::byte* own_part;  // The peer's part, as Memory::own_part. Null if it shares none.
  const std::byte* output;    // The peer's whole output. Null if it shares none.
};

class GatherPhase {
 public:
  struct Memory {
    // This rank's part, end to end. With parts in ranges, the output itself: the part lies in its ranges.
    const std::byte* own_part;
    std::byte* output;      // The whole output.
    std::byte* delta_base;  // The base of this rank's part, for kAllGatherDelta. See Note [Delta base].
    std::vector<PeerMemory> peers;  // All local peers.

    // REQUIRES: `member` is a local peer.
    const PeerMemory& PeerOf(int member) const;
  };
  enum class Kind : uint8_t {
    kWhole,  // Every part is valid from the start.
    // All-reduce: parts become valid slice by slice while the phase runs. The owner of a part writes it to
    // every output of its node, and sets its counter when the part is complete.
    kPushed,
    // Every part is valid from the start, and the ranks of a share domain share one output. See Note [Shared
    // outputs].
    kShared,
  };
  // Lifetime: `parts` must outlive the phase.
  // Errors: kResourceExhausted (no scratch for the encoded slices of other nodes).
  static absl::StatusOr<std::unique_ptr<GatherPhase>> Create(const OperationContext& context,
                                                             const PartLayout& parts, DType dtype,
                                                             int64_t slice_elements, const Memory& memory,
                                                             Kind kind);
  // Not copyable: tasks hold pointers to the streams.
  GatherPhase(const GatherPhase&) = delete;
  GatherPhase& operator=(const GatherPhase&) = delete;

  // Slices of a member's part, counted from the first, that may be overwritten in this rank's output.
  using Writable = absl::FunctionRef<int64_t(int member)>;
  static int64_t AllWritable(int member);
  // Advances. Returns true if anything moved. `own_available`: valid slices of this rank's part.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t own_available,
                            Writable writable = AllWritable);
  bool complete() const;  // The whole output is valid.
  bool drained() const;   // The phase is complete, all slices are sent, and the delta base is up to date.
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(std::set<int>& ranks) const;

  // The slicing of a member's part, the same on all ranks.
  Slicing SlicingOf(int member) const {
    return {parts_.counts[static_cast<size_t>(member)], slice_elements_};
  }

 private:
  // Copy of a part from the memory of a local rank.
  struct Pull {
    CopyStream stream;
    int member;      // Owner of the part.
    int source;      // Bootstrap rank that is read from.
    int counter;     // Index of the source's counter of valid slices. -1: all slices are valid.
    bool announced;  // False while peers wait for this rank's counter of the part.
  };
  // Receive of a remote part for this node.
  struct Relay {
    ReceiveStream stream;
    std::optional<CopyStream> unpack;  // Decodes or unpacks slices into the output.
    int member;                        // Owner of the part.
    int64_t announced = 0;             // Slices that local peers know to be valid.

    int64_t done() const { return unpack ? unpack->done() : stream.done(); }
    bool finished() const { return unpack ? unpack->finished() : stream.finished(); }
  };
  // A part that a local peer writes to this rank's output.
  struct Watch {
    int member;  // Owner of the part.
    int writer;  // Bootstrap rank that writes it.
  };

  GatherPhase(const OperationContext& context, const PartLayout& parts, DType dtype, int64_t slice_elements,
              const Memory& memory, Kind kind);
  void PlanLocal(const OperationContext& context, const Memory& memory);
  void PlanShared(const OperationContext& context, const Memory& memory);
  absl::Status PlanWire(const OperationContext& context, const Memory& memory);
  // Adds the relay of a remote part to its place in this rank's output. Takes the ring of slices that cannot
  // be received there from `ring`, the remaining scratch.
  void AddRelay(const CreditScheduler::Channel& channel, int member, std::byte* output, std::byte*& ring);
  // Bytes of the ring of a member's part.
  size_t RingBytes(int member) const;
  // Memory of the part of a member that submitted `own_part` and `output`.
  SliceMemory Submitted(const std::byte* own_part, const std::byte* output, int member) const;
  SliceMemory OwnPart(const GroupPlacement& placement, const Memory& memory) const {
    return Submitted(memory.own_part, memory.output, placement.me());
  }
  // True if there are streams between nodes for a member's part.
  bool UsesWire(int member) const;
  SliceMemory RingFor(std::byte* base) const { return {base, element_bytes_, ring_slices_, encoding_}; }
  void AddWatch(const OperationContext& context, int member, int writer);
  // Adds a copy of a member's part from the memory of `source_member`.
  void AddPull(const OperationContext& context, SliceMemory source, SliceMemory target, int member,
               int source_member, int counter);
  // A member's part in a whole output.
  SliceMemory PartOf(const std::byte* output, int member) const {
    return PartMemory(parts_, output, member, element_bytes_);
  }
  bool StepPulls(OperationContext& context, int64_t own_available, Writable writable);
  absl::StatusOr<bool> StepRelays(OperationContext& context, Writable writable);
  bool StepWatches(OperationContext& context);
  // Announces parts whose copies have finished, and closes these. True if there were any.
  bool ClosePulls(OperationContext& context);

  const Kind kind_;
  const PartLayout& parts_;
  const DType dtype_;
  const size_t element_bytes_;
  const int64_t slice_elements_;
  const bool nontemporal_;
  const WireEncoding encoding_;  // Encoding of slices between nodes.
  int64_t ring_slices_ = 1;      // Slices of each remote part that fit its ring.
  Buffer ring_;                  // Rings of received slices that are encoded or packed.
  ScratchSlots slots_;           // Scratch for the encoded and packed slices that this rank sends.
  // Deques: tasks hold pointers to the streams.
  std::deque<Pull> pulls_;
  std::deque<Relay> relays_;
  // Those that are not finished and announced, in the same order.
  std::vector<Pull*> open_pulls_;
  CreditPace pace_;  // Of the relays.
  std::vector<Relay*> open_relays_;
  Sends sends_;
  std::vector<Watch> watches_;  // Those that are not done.
  std::optional<SliceMemory> delta_base_;
  std::optional<CopyStream> base_update_;  // Copies this rank's part to the delta base.
};

}  // namespace weft
