// Messages of a relayed exchange: receives whose credits go in order, and rounds of messages. See Note
// [Relayed exchanges].
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <deque>
#include <set>

#include <absl/status/statusor.h>

#include "src/comm/phases/sends.h"
#include "src/comm/phases/streams.h"

namespace weft {

// True if this rank acts for its node.
bool LeadsNode(const GroupPlacement& placement);
// The leader announces to the other ranks of its node that it has the result.
void AnnounceResultToNode(OperationContext& context);
bool HasLeaderAnnounced(const OperationContext& context);

// The channel of this operation to or from the first member of `node`.
CreditScheduler::Channel ChannelToLeader(const OperationContext& context, int node, int number);

// Receives of which each gets credits after those before it.
class OrderedReceives {
 public:
  // Adds the last one. The reference stays valid.
  const ReceiveStream& Add(const CreditScheduler::Channel& channel, const Slicing& slicing,
                           const SliceMemory& target, ReceiveStream::Source source);
  // Returns true if anything moved.
  absl::StatusOr<bool> Step(OperationContext& context);
  // Receives, counted from the first, that are finished.
  size_t finished() const;
  size_t size() const { return receives_.size(); }
  bool all_finished() const { return finished() == receives_.size(); }
  bool all_credited() const;
  void AddAwaited(std::set<int>& ranks) const;

 private:
  std::deque<ReceiveStream> receives_;  // A deque: transfers hold pointers to the streams.
  mutable size_t finished_ = 0;
  bool announced_empty_ = false;
};

// Rounds of messages. This rank sends the message of a round once those of all earlier rounds have arrived.
class RelayRounds {
 public:
  struct Message {
    CreditScheduler::Channel channel;
    Slicing slicing;
    SliceMemory memory;
  };
  // Adds a message that waits for all receives that were added before.
  void AddSend(const Message& message);
  void AddReceive(const Message& message, ReceiveStream::Source source);
  // Returns true if anything moved. `ready`: messages of the first round may be sent.
  absl::StatusOr<bool> Step(OperationContext& context, bool ready);
  bool received() const { return receives_.all_finished(); }
  bool drained() const;
  void AddAwaited(std::set<int>& ranks) const;

 private:
  struct Send {
    size_t awaited;  // Receives, counted from the first.
    SendStream stream;
  };
  OrderedReceives receives_;
  std::deque<Send> sends_;   // A deque: transfers hold pointers to the streams.
  mutable size_t sent_ = 0;  // Sends, counted from the first, that are finished.
};

}  // namespace weft
