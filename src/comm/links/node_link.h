// How ranks of one node see each other: published descriptors, progress counters, consumed flags, and their
// memory.
//
// Every flag has one writer, but for claims. Publishing, advancing and releasing are release stores, peeking
// is an acquire load: what a rank wrote before is visible to whoever saw the flag.
//
// Note [Descriptor ring]
// A lane's descriptors lie in a ring of kSlots. The slot of sequence s is written again for s + kSlots, and
// only when every peer of the node has consumed s: a slower peer may still read the descriptor, or its
// counters, until then.
//
// Thread safety: one caller at a time (the engine's lock), but for Map and Ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/base/descriptor.h"
#include "weft/memory/node_heap.h"

namespace weft {

class NodeLink {
 public:
  static constexpr int kMaxLanes = 32;
  static constexpr uint64_t kSlots = 8;

  explicit NodeLink(NodeHeap& heap) : heap_(heap) {}
  virtual ~NodeLink() = default;
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Gives a lane `counters` progress counters a slot. Before the lane's first use; again after Reset, with as
  // many.
  virtual absl::Status OpenLane(int lane, int counters) = 0;

  // Makes the operation visible to the node's ranks. Its counters start at 0.
  virtual void Publish(int lane, const Descriptor& descriptor) = 0;
  // What `peer` (a bootstrap rank of this node) published at `sequence`, once it has.
  virtual std::optional<Descriptor> Peek(int lane, int peer, uint64_t sequence) const = 0;

  // Monotonic counters of one published operation; each rank writes its own.
  virtual void SetCounter(int lane, uint64_t sequence, int index, int64_t value) = 0;
  virtual int64_t Counter(int lane, int peer, uint64_t sequence, int index) const = 0;

  // Takes the next of the `count` pieces that `peer`'s part of a published operation (or this rank's own) is
  // made in: its number, or nothing once all are taken. The one flag that all ranks of the node write.
  virtual std::optional<int64_t> Claim(int lane, int peer, uint64_t sequence, int64_t count) = 0;
  // Whether nothing is left to claim.
  virtual bool AllClaimed(int lane, int peer, uint64_t sequence, int64_t count) const = 0;

  // "I read nothing of `sequence` or before any more."
  virtual void Release(int lane, uint64_t sequence) = 0;
  virtual uint64_t Consumed(int lane, int peer) const = 0;

  // Memory of the node, as this rank addresses it.
  std::byte* Map(NodeAddress address) const { return heap_.Resolve(address); }
  // How every rank of the node can name `memory`; nothing if it is not node memory.
  std::optional<NodeAddress> AddressOf(const void* memory) const { return heap_.AddressOf(memory); }

  // Leaves word of a failure for the node's other ranks (the first word stays), and reads theirs.
  virtual void PublishFailure(const absl::Status& cause) = 0;
  struct Word {
    int rank;
    absl::Status cause;
  };
  virtual std::optional<Word> ReadWord() const = 0;

  // A sign of life, once a turn of the core; and how many a peer has given.
  virtual void Beat() = 0;
  virtual uint64_t Heartbeats(int peer) const = 0;

  // Forgets all of this rank's flags and words. No rank of the node may be using them meanwhile.
  virtual void Reset() = 0;

  // Doorbells. Ring tells a rank of this node to look again; Wait sleeps until somebody rings after `seen`
  // was read, or the time is over.
  virtual void Ring(int peer) = 0;
  virtual uint32_t Doorbell() const = 0;
  virtual void Wait(uint32_t seen, int64_t timeout_ns) = 0;

 protected:
  NodeHeap& heap() const { return heap_; }

 private:
  NodeHeap& heap_;
};

}  // namespace weft
