// Brings every rank's part to every rank: the whole of an all-gather, and the second half of an all-reduce.
//
// Note [Relays]
// A part from another node comes to the node once: its *agent* there receives it into its own output, and the
// node's other ranks pull it from there, slice by slice, as the agent's counter for that part grows.
//
// Note [Shared outputs]
// Where the ranks of a node name one output, pulling has no work left: a part is written by its owner, or by
// its agent, and everybody else *watches* the writer's counter for it, which then is set once, at the end. A
// part that already lies in the output needs not even that: its owner has published it.
//
// Note [Older states]
// Where every output holds an older state of the parts, and each owner knows that of its own, slices travel
// between nodes as changes. When all are sent, the owner brings what it knows up to date, as part of the
// operation: it has not been *released* before.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/container/inlined_vector.h>
#include <absl/status/statusor.h>

#include "src/comm/collectives/collective_plan.h"
#include "src/comm/collectives/sends.h"
#include "src/comm/collectives/streams.h"

namespace weft {

// Where a node-local peer's own part, and its whole output, can be read.
struct PeerMemory {
  int member;
  const std::byte* own_part;
  const std::byte* output;
};

class GatherPhase {
 public:
  struct Memory {
    const std::byte* own_part;  // This rank's part. A peer's is null if it shares none.
    std::byte* output;          // The whole.
    // Of a gather of changes: what outputs elsewhere hold in place of this rank's part. See Note [Older
    // states].
    std::byte* before;
    std::vector<PeerMemory> peers;  // Every rank of the node but this one.
  };
  enum class Kind : uint8_t {
    kWhole,  // Every part is there from the start.
    // Parts come to be while the phase runs (all-reduce). Their owners write them to every output of the
    // node; a peer's counter of its part says when all of it is there.
    kPushed,
    kShared,  // Every part is there, and the node's ranks have one output. See Note [Shared outputs].
  };
  // Errors: kResourceExhausted (no scratch for what other nodes will send compressed).
  static absl::StatusOr<std::unique_ptr<GatherPhase>> Create(const OperationContext& context,
                                                             const PartLayout& parts, DType dtype,
                                                             int64_t slice_elements, const Memory& memory,
                                                             Kind kind);
  // Streams are named by address.
  GatherPhase(const GatherPhase&) = delete;
  GatherPhase& operator=(const GatherPhase&) = delete;

  // `own_available`: slices of the own part that are there.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t own_available);
  bool complete() const;  // The output is whole.
  bool drained() const;   // And nothing is owed.
  void AddAwaited(std::set<int>& ranks) const;

  // The slicing of a member's part, the same on all ranks.
  Slicing SlicingOf(int member) const {
    return {parts_.counts[static_cast<size_t>(member)], slice_elements_};
  }

 private:
  struct Pull {
    CopyStream stream;
    int source;   // The peer that is read from,
    int counter;  // and its counter that says how far; -1: all is there.
  };
  struct Relay {
    ReceiveStream stream;
    std::optional<CopyStream> unpack;  // Of what comes compressed.
    int member;
    int64_t announced = 0;

    int64_t done() const { return unpack ? unpack->done() : stream.done(); }
    bool finished() const { return unpack ? unpack->finished() : stream.finished(); }
  };
  struct Watch {
    int member;  // Whose part
    int writer;  // that peer writes.
    bool done = false;
  };

  GatherPhase(const OperationContext& context, const PartLayout& parts, DType dtype, int64_t slice_elements,
              const Memory& memory, Kind kind);
  void PlanLocal(const OperationContext& context, const Memory& memory);
  void PlanShared(const OperationContext& context, const Memory& memory);
  absl::Status PlanWire(const OperationContext& context, const Memory& memory);
  // `ring`: scratch that is left for what comes compressed.
  void AddRelay(const CreditScheduler::Channel& channel, int member, std::byte* place, std::byte*& ring);
  // Only read: the cast is for SliceMemory, which serves targets too.
  SliceMemory OwnPart(const Memory& memory) const {
    return {const_cast<std::byte*>(memory.own_part), element_bytes_};
  }
  bool Travels(int member) const;
  SliceMemory RingFor(std::byte* base) const { return {base, element_bytes_, ring_slices_, form_}; }
  void AddWatch(const OperationContext& context, int member, int writer);
  void AddPull(const std::byte* source, std::byte* target, int member, int peer, int counter);
  std::byte* PlaceOf(std::byte* output, int member) const {
    return output + static_cast<size_t>(parts_.offsets[static_cast<size_t>(member)]) * element_bytes_;
  }
  bool StepPulls(OperationContext& context, int64_t own_available);
  absl::StatusOr<bool> StepRelays(OperationContext& context);
  bool StepWatches(OperationContext& context);
  // Tells the node's ranks how much of a member's part is in this rank's output.
  void Announce(OperationContext& context, int member, int64_t slices);

  const Kind kind_;
  const PartLayout parts_;
  const DType dtype_;
  const size_t element_bytes_;
  const int64_t slice_elements_;
  const bool nontemporal_;
  const WireEncoding form_;  // Between nodes.
  int64_t ring_slices_ = 1;  // Of each part in
  Buffer ring_;              // what comes compressed lands in.
  ScratchSlots slots_;       // What goes compressed is made in them.
  // Deques: streams are named by address while pieces of them are under way.
  std::deque<Pull> pulls_;
  std::deque<Relay> relays_;
  Sends sends_;
  std::vector<Watch> watches_;
  std::optional<SliceMemory> before_;
  std::optional<CopyStream> remember_;  // The own part, there.
  bool own_announced_ = true;           // Nobody waits to hear of this rank's part.
};

}  // namespace weft
