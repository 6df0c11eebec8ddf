// The core's dealings with other nodes: credits, slices under way, signs of life, and bad news.
//
// Note [Credits]
// Transfers are receiver-driven. A receiver posts the receive of a slice and only then sends a *credit* for
// it; a sender sends a slice only against a credit. So priority is decided where data is awaited, and nothing
// queues in a socket.
//   - Within (lane, peer, channel) slices are credited, sent and received in order, so that a count is
//     enough and messages of one tag match by order.
//   - Each (lane, phase) has a window of bytes under way; while something of higher priority waits for the
//     wire, all lower traffic together keeps to a smaller one.
//   - Once there are exchanges between nodes, which somebody waits for and which come unannounced, all that
//     nobody waits for keeps to a window together at any time: an exchange finds no more than that before it.
//   - The operation at the head of a lane may always have one slice a phase under way. A credited slice
//     completes independently of every other, since its sender needs nothing from the wire to produce it but
//     earlier operations (and, for the gather phase of an all-reduce, its reduce phase, which has a window of
//     its own). Hence no deadlock.
// A credit carries the receiver's descriptor: a rank that runs something else at that place of the lane finds
// out.
//
// Thread safety: the core's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/part_shape.h"
#include "src/comm/links/node_link.h"
#include "weft/comm/comm_engine.h"
#include "weft/comm/types.h"
#include "weft/mesh/wire_link.h"

namespace weft {

// Which half of an operation a slice belongs to: each has a window of its own.
enum class WirePhase : uint8_t { kReduce, kGather };

// Something that sends or receives slices and is told of their end.
class WireOwner {
 public:
  virtual void OnWireDone(int64_t slice) = 0;

 protected:
  ~WireOwner() = default;
};

class CreditScheduler {
 public:
  CreditScheduler(WireLink& link, const EngineOptions& options, EngineCounters& counters);

  // Which stream of slices: unique among a lane's operations of one sequence, between two ranks.
  struct Channel {
    int lane;
    uint64_t sequence;
    int peer;  // Bootstrap rank.
    int number;
  };
  static constexpr int kChannels = 4096;  // Numbers a lane may use.

  // Once a turn of the core: moves notes and finished slices on. True if anything happened.
  absl::StatusOr<bool> Poll();

  // Receiver's side. `head`: the operation is the first unfinished one of its lane.
  bool MayReceive(int lane, WirePhase phase, Priority priority, size_t bytes, bool head) const;
  struct Slice {
    int64_t number;
    std::byte* target;
    size_t bytes;
    WireLink::Length length = WireLink::Length::kExact;
  };
  // `part`: the shape of the whole stream, which the sender holds against its own.
  absl::Status Receive(const Channel& channel, WirePhase phase, Priority priority,
                       const Descriptor& descriptor, const PartShape& part, Slice slice, WireOwner* owner);
  // Tells a peer that nothing is expected of it on this channel.
  absl::Status ExpectNothing(const Channel& channel, const Descriptor& descriptor);
  // From now on critical transfers come unannounced: what nobody waits for keeps the wire short.
  void ExpectExchanges() { expects_exchanges_ = true; }
  // Says that something of this priority would like to receive; counts until the next turn is over.
  void Want(Priority priority);

  // Sender's side: what the receiver has said of a channel so far; nothing if it has not said a word.
  struct Credit {
    int64_t slices = 0;  // That may be sent.
    PartShape part;      // What it expects of the whole stream.
  };
  std::optional<Credit> CreditOf(const Channel& channel) const;
  absl::Status Send(const Channel& channel, int64_t slice, const std::byte* source, size_t bytes,
                    WireOwner* owner);

  // The first peer whose credit for this place of the lane describes something else, with what it described.
  std::optional<std::pair<int, Descriptor>> FindMismatch(int lane, const Descriptor& mine) const;
  // Forgets what is known of an operation that is over.
  void Forget(int lane, uint64_t sequence);

  // Bad news, to all of `ranks`; and the first that came in.
  void BroadcastFailure(const absl::Status& cause, const std::vector<int>& ranks);
  const std::optional<NodeLink::Word>& word() const { return word_; }

  // Asks ranks of other nodes for a sign of life; Poll answers those of others. Answers() has who has
  // answered since.
  void RequestHeartbeat(const std::vector<int>& ranks);
  const std::set<int>& Answers() const { return answers_; }

  // Gives up all transfers (after a failure). Their owners are not told.
  void Abandon();
  // Peers whose messages were on their way when they were given up, and still write to memory here.
  std::set<int> ArrivingFrom();

  bool busy() const { return !under_way_.empty(); }
  // Moves on what other ranks are still to be told, when a failure has ended Poll. False: all of it has left,
  // or cannot any more.
  bool SendOn() { return link_.HasUnsentNotes() && link_.Poll().ok(); }

 private:
  struct Transfer {
    WireLink::RequestId request;
    WireOwner* owner;
    int64_t slice;
    bool receive;
    size_t bytes;
    int peer;
    int lane;
    WirePhase phase;
    Priority priority;
    bool yielded = false;  // Asked for while something more urgent wanted the wire.
  };
  using Key = std::tuple<int, uint64_t, int, int>;
  struct Notice {
    int peer;
    Descriptor descriptor;
  };

  static Key KeyOf(const Channel& c) { return {c.lane, c.sequence, c.peer, c.number}; }
  absl::StatusOr<bool> PollNotes();
  absl::StatusOr<bool> PollTransfers();
  absl::Status TakeNote(const WireLink::Note& note);
  // Bytes under way of lower priority.
  int64_t BytesBelow(Priority priority) const;
  Priority highest_wanted() const { return std::min(wanted_last_, wanted_now_); }
  int64_t& UnderWay(int lane, WirePhase phase) {
    return under_way_bytes_[static_cast<size_t>(lane)][static_cast<size_t>(phase)];
  }

  WireLink& link_;
  const EngineOptions& options_;
  EngineCounters& counters_;
  std::vector<Transfer> under_way_;
  std::vector<Transfer> arriving_;  // Given up, but not by the link.
  std::array<std::array<int64_t, 2>, NodeLink::kMaxLanes> under_way_bytes_{};
  std::array<int64_t, 4> bytes_by_priority_{};
  int64_t yielded_bytes_ = 0;
  bool expects_exchanges_ = false;
  Priority wanted_now_ = Priority::kBulk;   // Highest of this turn so far,
  Priority wanted_last_ = Priority::kBulk;  // and of the last whole turn.
  absl::Status SendCredit(const Channel& channel, const Descriptor& descriptor, const PartShape& part,
                          int32_t slices);
  absl::flat_hash_map<Key, Credit> credits_;
  absl::flat_hash_map<std::pair<int, uint64_t>, std::vector<Notice>> notices_;
  std::optional<NodeLink::Word> word_;
  std::set<int> answers_;
};

}  // namespace weft
