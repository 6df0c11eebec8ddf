// Word in node memory by which the rank that arrives last tells the others what it has moved for them.
//
// Note [Last arrival]
// Problem: if every rank moved its own part of a small collective, it would wait twice: until all ranks have
// arrived, and until all have read its input. Each wait may take a wake-up, which costs more than the data.
// Rule: the rank that publishes the operation last (Note [Arrivals]) moves everything: it copies or reduces
// all parts, and writes the outputs of all ranks. It then sets the operation's word, and wakes the others.
// The move is *immediate*: the thread that finds that its rank is the last one performs it, even if it only
// submits. Waking another thread would take longer.
// Why it suffices: that rank is running, and all inputs are there. A sum has the order of the canonical tree,
// whichever rank computes it. Once the word is set, no rank accesses another's buffers, so that an operation
// is *released* when it is *ready*.
// Outputs outside node memory: only their owners can write them. The word then says that these ranks move
// their own results, once the last one has moved those of the others. The operation is *released* when all
// ranks have consumed it.
#pragma once

#include <cstdint>
#include <set>

#include "src/comm/phases/operation.h"

namespace weft {

// The largest data that one rank moves for all: that of all outputs (gathers, all-reduce, all-to-all) or of
// all inputs (reduce-scatter). To move as much in parts, the ranks of a node together take about as long for
// their tasks, doorbells and second wait as for the data.
inline int64_t MaxWholeBytes(const EngineOptions& options) { return 2 * options.piece_bytes; }

enum class Moved : uint8_t {
  kNothing = 1,       // The last rank is moving, or no rank is the last one yet.
  kForAll = 2,        // All outputs are valid.
  kForReachable = 3,  // The outputs in node memory are valid.
  kForNone = 4        // Every rank moves its own result.
};

// Lifetime: the node link and the placement of the context must outlive it.
class LastArrival {
 public:
  explicit LastArrival(const OperationContext& context)
      : node_(context.node),
        placement_(context.placement),
        meeting_(NodeLink::MeetingOf(context.record->lane, context.placement)),
        sequence_(context.record->descriptor.sequence) {}

  // REQUIRES: this rank arrived last.
  void Tell(Moved moved) {
    const int rank = placement_.WorldRank(placement_.me());
    node_.SetWord(meeting_, sequence_, kStates * rank + static_cast<int64_t>(moved));
  }
  void TellAndWakePeers(Moved moved) {
    Tell(moved);
    for (const int peer : placement_.local_peers()) node_.Ring(placement_.WorldRank(peer));
  }
  Moved moved() const {
    const int64_t told = word();
    return told == 0 ? Moved::kNothing : static_cast<Moved>((told - 1) % kStates + 1);
  }
  // Adds the bootstrap rank of the last one, or all peers of the node if it has told nothing yet.
  void AddAwaited(std::set<int>& ranks) const {
    if (const int64_t told = word(); told != 0) {
      ranks.insert(static_cast<int>((told - 1) / kStates));
      return;
    }
    for (const int peer : placement_.local_peers()) ranks.insert(placement_.WorldRank(peer));
  }

 private:
  static constexpr int64_t kStates = 4;
  int64_t word() const { return node_.Word(meeting_, sequence_); }

  NodeLink& node_;
  const GroupPlacement& placement_;
  const NodeLink::Meeting meeting_;
  const uint64_t sequence_;
};

}  // namespace weft
