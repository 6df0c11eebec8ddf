// Link between the ranks of one node: published descriptors, progress counters, consumed sequences, messages,
// failure notices, heartbeats, doorbells, and access to each other's memory.
//
// Memory order: each flag has a single writer, except counters of pieces, doorbells and the count in an
// operation's word. Writers use release stores or additions, and readers use acquire loads. A rank that sees
// a flag therefore sees everything that its writer wrote before. Claims and heartbeats order nothing.
//
// Note [Descriptor ring]
// Problem: a slower local peer may still read a descriptor and its counters after this rank has finished the
// operation.
// Rule: the descriptors of a lane lie in a ring of kSlots slots. Sequence s + kSlots reuses the slot of
// sequence s, and only after every local peer has consumed s.
// Why it suffices: a peer reads nothing of a sequence that it has consumed.
//
// Note [Arrivals]
// Problem: each rank of a node needs the descriptors of all others, and needs to know that all have consumed
// an operation. If each rank told each other, an operation would take as many wake-ups and reads as there are
// pairs.
// Rule: the ranks count themselves in two counters of the operation, which lie in the memory of one of them,
// the *node leader*: one of ranks that have published it, and one of ranks that have consumed it. Each also
// adds the hash of its descriptor to a sum. The rank that arrives last knows, and wakes the others, once. If
// the sum is that of equal hashes, no rank reads another's descriptor to compare it. The rank that consumes
// last clears the counters, and then publishes the sequence as consumed by all.
// Why it suffices: the counts are read-modify-writes, so a rank that sees a full count sees everything that
// the counted ranks wrote before. No rank starts the next operation of a slot before it is cleared: see Note
// [Descriptor ring]. A rank that waits for others still looks at their descriptors one by one, so that a
// mismatch is also found if a rank never arrives.
//
// Thread safety: called under the core's lock, except Reset, which runs while the core has failed, and Map,
//   AddressOf and the doorbells, which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/group_placement.h"
#include "weft/memory/node_heap.h"

namespace weft {

class NodeLink {
 public:
  static constexpr int kMaxLanes = 1 << 20;
  static constexpr uint64_t kSlots = 8;

  explicit NodeLink(NodeHeap& heap) : heap_(heap) {}
  virtual ~NodeLink() = default;
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Allocates this rank's flags of a lane in [0, kMaxLanes), with `counters` progress counters for each slot.
  // The lanes of a rank may have any indices. REQUIRES: called before the lane's first use, and again after
  // Reset with the same number. Errors: kResourceExhausted (no node memory).
  virtual absl::Status OpenLane(int lane, int counters) = 0;
  // Allocates the flags of the next lane that is opened with `counters` counters, which then cannot fail.
  virtual absl::Status ReserveLane(int counters) = 0;

  // In all members `peer` is a bootstrap rank of this node, or this rank itself.

  // Publishes an operation to the local peers, with all of its counters at 0.
  virtual void Publish(int lane, const Descriptor& descriptor) = 0;
  // The descriptor that `peer` has published at `sequence`. Nothing if it has not published one yet.
  virtual std::optional<Descriptor> Peek(int lane, int peer, uint64_t sequence) const = 0;

  // Monotonic progress counters of a published operation. Each rank writes its own.
  virtual void SetCounter(int lane, uint64_t sequence, int index, int64_t value) = 0;
  virtual int64_t Counter(int lane, int peer, uint64_t sequence, int index) const = 0;

  // Claims the next of the `count` pieces of `peer`'s part of a published operation. Returns its number, or
  // nothing if all are claimed. All ranks of the node may write this counter.
  virtual std::optional<int64_t> ClaimPiece(int lane, int peer, uint64_t sequence, int64_t count) = 0;
  // True if all `count` pieces are claimed.
  virtual bool AllPiecesClaimed(int lane, int peer, uint64_t sequence, int64_t count) const = 0;
  // Counts a piece of `peer`'s part that this rank has claimed and written.
  virtual void FinishPiece(int lane, int peer, uint64_t sequence) = 0;
  virtual int64_t FinishedPieces(int lane, int peer, uint64_t sequence) const = 0;

  // Declares that this rank no longer accesses memory of peers for `sequence` or any earlier one.
  virtual void Release(int lane, uint64_t sequence) = 0;
  // The last sequence for which `peer` has called Release.
  virtual uint64_t Consumed(int lane, int peer) const = 0;

  // Counters of a group's ranks on this node. See Note [Arrivals]. `leader` and `ranks` are the same for all.
  struct LocalGroup {
    int lane;
    int leader;  // Bootstrap rank of the node leader.
    int ranks;   // Their number.
  };
  enum class Arrived : uint8_t {
    kSome,      // Some ranks have not arrived.
    kAllEqual,  // All have, with equal hashes.
    kUnequal,   // As many ranks have arrived, but their hashes are not all equal.
    kTooMany    // More have arrived: ranks of another group were counted.
  };
  // Counts this rank, which has published `sequence` with a descriptor of this hash. Returns kAllEqual or
  // kUnequal to the last one alone, and nothing if the leader has not opened the lane yet: call it again
  // later.
  virtual std::optional<Arrived> Arrive(const LocalGroup& group, uint64_t sequence, uint64_t hash) = 0;
  // REQUIRES: this rank has arrived with this hash, and has not consumed the operation.
  virtual Arrived HaveArrived(const LocalGroup& group, uint64_t sequence, uint64_t hash) const = 0;
  // Counts this rank among those that have consumed `sequence`. Returns true if it is the last one.
  // REQUIRES: called once for each sequence, in order, once all have arrived.
  virtual bool Consume(const LocalGroup& group, uint64_t sequence) = 0;
  // The last sequence that all ranks have consumed.
  virtual uint64_t ConsumedByAll(const LocalGroup& group) const = 0;
  // A word of the operation, 0 at first. One rank sets it. All may read it and add to it.
  virtual void SetWord(const LocalGroup& group, uint64_t sequence, int64_t value) = 0;
  virtual int64_t Word(const LocalGroup& group, uint64_t sequence) const = 0;
  // Adds to the word once it has been written. All ranks may do that. Returns the sum.
  virtual int64_t AddToWord(const LocalGroup& group, uint64_t sequence, int64_t value) = 0;

  static LocalGroup LocalGroupOf(int lane, const GroupPlacement& placement) {
    return {lane, placement.BootstrapRank(placement.node_leader()), placement.local_size()};
  }

  // Mail between two ranks of the node, in order for each pair.

  struct Mail {
    int peer;
    std::string bytes;
  };
  // Sends a copy of at most Mailbox::kMaxBytes bytes to another rank, and wakes it. Mail that finds the
  // mailbox full waits in this rank's memory for FlushMail. Mail to a rank whose link was destroyed is
  // dropped: nobody reads it.
  void SendMail(int peer, std::string_view bytes);
  // Sends as much waiting mail as possible. True if some still waits.
  bool FlushMail();
  // True if mail waits in this rank's memory.
  bool HasUnsentMail() const { return !unsent_.empty(); }
  // The next mail that has arrived; nothing if there is none.
  virtual std::optional<Mail> ReceiveMail() = 0;

  // This rank's pointer to an address in node memory.
  std::byte* Map(NodeAddress address) const { return heap_.Resolve(address); }
  // True if Map may be called for all of these bytes.
  bool Holds(NodeAddress address, int64_t bytes) const {
    return bytes >= 0 && heap_.Holds(address, static_cast<size_t>(bytes));
  }
  // Address of `memory` that is valid on every rank of the node. Nothing if it is not node memory.
  std::optional<NodeAddress> AddressOf(const void* memory, size_t bytes = 1) const {
    return heap_.AddressOf(memory, bytes);
  }

  struct FailureNotice {
    int rank;  // Bootstrap rank that failed first. Others pass the notice on.
    absl::Status cause;
  };
  // Publishes a failure notice to the local peers. Only the first notice counts.
  virtual void PublishFailure(const FailureNotice& notice) = 0;
  // The failure notice of a local peer, if there is one.
  virtual std::optional<FailureNotice> ReadFailure() const = 0;

  // Increments this rank's heartbeat counter. Called once in every poll of the core.
  virtual void PublishHeartbeat() = 0;
  virtual uint64_t Heartbeats(int peer) const = 0;

  // Clears all flags of this rank. REQUIRES: no rank of the node uses them meanwhile.
  virtual void Reset() = 0;

  // Doorbells. See Note [Doorbell].

  // Wakes a rank of this node, so that it polls again.
  virtual void Ring(int peer) = 0;
  // The same, but lets a rank sleep on.
  virtual void RingIfAwake(int peer) = 0;
  // The value of this rank's doorbell.
  virtual uint32_t Doorbell() const = 0;
  // Sleeps until the doorbell differs from `seen`, or `timeout_ns` has passed.
  virtual void Wait(uint32_t seen, int64_t timeout_ns) = 0;

 protected:
  NodeHeap& heap() const { return heap_; }
  // Puts mail into the mailbox of a peer. False if it is full. True, without effect, if the link of the peer
  // was destroyed.
  virtual bool WriteMail(int peer, std::string_view bytes) = 0;
  void DropUnsentMail() { unsent_.clear(); }

 private:
  NodeHeap& heap_;
  std::map<int, std::deque<std::string>> unsent_;  // By peer: mail that found its mailbox full. Never empty.
};

}  // namespace weft
