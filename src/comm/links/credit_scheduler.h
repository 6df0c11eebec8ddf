// Credit-based flow control of the transfers between nodes, and the partial sums of small collectives, which
// travel without credits.
//
// Note [Credits]
// Problem: slices that a sender pushes queue in sockets in the order of sending. An urgent slice waits behind
// them, and the rank that waits for it cannot change the order.
// Rule: transfers are receiver-driven. A receiver posts the receive of a slice, and then sends a *credit* for
// it. A sender sends a slice only against a credit. The receiver therefore decides the priority, and nothing
// queues in a socket.
//   - Order: slices of one (lane, peer, channel) are credited, sent and received in order. A count of credits
//     is therefore enough, and messages of one tag match by order.
//   - Lane window: bounds the bytes in flight of each (lane, phase), unless all lanes together are within the
//     budget that was measured: see Note [Wire budget]. kCritical operations, such as those that a thread
//     waits for, have twice the window: on a slow link, a lane's share of the bytes in flight is its share of
//     the bandwidth. They have no more of the budget: with twice as much, four ranks of a node that share a
//     link drifted apart.
//   - Pace and stream window: keep the streams of several nodes even. See Note [Paced credits].
//   - Yield window: while an operation of higher priority wants the wire, bounds the bytes in flight of all
//     operations of lower priority together.
//   - Background window: on an engine with a context lane between nodes, always bounds the bytes in flight of
//     all operations below kCritical together. An exchange on a context lane starts without notice while a
//     rank already waits for it; this window, or the measured budget if that is larger, bounds the data that
//     it finds ahead of it in the wire.
//   - Head slice: a lane may always have one slice of each phase in flight, even if a window is full: one of
//     its only operation that is not *ready* (Note [Lanes]), or of any message.
// Why there is no deadlock: to produce a credited slice, its sender needs nothing from the wire but earlier
// operations. The gather phase of an all-reduce also needs the reduce phase of the same operation, which has
// a window of its own. Each credited slice therefore completes independently of all others. Without the head
// slice, the windows could be full of slices whose senders wait for the very operation that the windows hold
// back. A broadcast passes slices on: a credited slice needs the same slice at the sender, which is one edge
// nearer to the root of a tree. It follows by induction over the edges that it completes. Each of the two
// trees has the window of a phase: in one window, the slices of both trees could wait for each other. Relayed
// exchanges have a window, too: see Note [Relayed exchanges].
//
// Note [Silent peers]
// Problem: a peer that has not started an operation sends nothing, whatever credits it has. If such an
// operation held back lower priorities, or its credits filled the windows, one late rank would slow all
// traffic of the others.
// Rule: until a peer is known to have started the operation, a receiver gives it credits for
// kSilentSlices slices of a stream. They count in the lane window and the budget only, and the operation
// registers no demand for the stream. A peer has started if one of its credit messages or partial sums for
// the operation has arrived, or its first slice. The sender of a point-to-point message has started once it
// has announced the message. If a peer produces the slices while the operation runs, as in the second phase
// of an all-reduce, only its first slice is evidence.
// Slices that may run ahead: on a fast or long link, two slices are sent long before the credits for more
// arrive. While nothing more urgent wants the wire, streams of silent peers therefore have further slices in
// flight, up to a half of the measured budget in all (Note [Wire budget]). Other operations keep the other
// half, which holds what the link brings in the time of a credit. Once the peer has started, its slices count
// in all windows.
// Why it suffices: demands and the windows that operations share then count only slices that can arrive. The
// first slices keep a sender busy while its receiver learns that it has started.
//
// A credit also carries the receiver's descriptor. A sender that runs a different operation at that sequence
// of the lane detects the mismatch.
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/base/descriptor.h"
#include "src/comm/base/part_shape.h"
#include "src/comm/base/trace_log.h"
#include "src/comm/links/control_mail.h"
#include "src/comm/links/credit_pace.h"
#include "src/comm/links/credit_rules.h"
#include "src/comm/links/poll_times.h"
#include "src/comm/links/run_trials.h"
#include "src/comm/links/tag_layout.h"
#include "src/comm/links/wire_budget.h"
#include "weft/comm/engine_options.h"
#include "weft/comm/types.h"
#include "weft/mesh/wire_link.h"

namespace weft {

// The phase of an operation that a slice belongs to. Each phase has a window of its own.
enum class WirePhase : uint8_t { kReduce, kGather, kRelay };
inline constexpr size_t kWirePhases = 3;

// Receiver of the completion callbacks of transfers.
class WireOwner {
 public:
  virtual void OnWireDone(int64_t slice) = 0;

 protected:
  ~WireOwner() = default;
};

class CreditScheduler {
 public:
  // `tags` is that of the link: TagLayout::Of(link.max_tag(), …).
  // `mail` gets the control messages that are neither credits nor partial sums.
  CreditScheduler(WireLink& link, ControlMail& mail, TagLayout tags, const EngineOptions& options,
                  EngineCounters& counters, TraceLog& trace, CreditRules rules = {});

  // Identifies one stream of slices between this rank and a peer.
  struct Channel {
    int lane;           // kMessageLane for point-to-point messages.
    uint64_t sequence;  // Of a message: the sender's number of it.
    int peer;           // Bootstrap rank.
    int number;         // Unique among the streams of one operation between two ranks. See Note [Tags].
  };
  const CreditRules& rules() const { return rules_; }
  // Errors: kResourceExhausted (the link has no tags for the lane; says what to do).
  absl::Status CheckLane(int lane, std::string_view name) const;
  // Slices of a stream that a peer may send before it is known to have started. See Note [Silent peers].
  static constexpr int64_t kSilentSlices = 2;

  // Handles control messages and finished transfers. True if there were any. REQUIRES: called once in every
  // poll of the core.
  absl::StatusOr<bool> Poll(int64_t now_ns);

  // Receiver side.

  // Bytes that all lanes together may have in flight to this rank beyond their windows. See Note [Wire
  // budget]. 0 until something has arrived.
  int64_t budget_bytes() const { return budget_.bytes(); }
  // Interval between polls of the wire. Very long until a rate is measured. See Note [Poll intervals].
  int64_t PollIntervalNs(int64_t now_ns) const {
    return poll_times_.IntervalNs(now_ns, budget_.rate(), all_bytes_, silent_bytes_ > 0);
  }
  // An operation between nodes has begun.
  void BeginOperation(int64_t now_ns) { poll_times_.BeginOperation(now_ns); }

  // Slices of `slice_bytes` bytes that the longest run has; 1 if slices travel alone. See Note [Runs of
  // slices].
  int64_t LongestRun(Priority priority, int64_t slice_bytes) const {
    int64_t bytes = std::min(budget_.message_bytes(), options_.max_run_bytes);
    if (priority > highest_demand()) bytes = std::min(bytes, options_.yield_window_bytes / kRunsOfWindow);
    const int64_t slices = bytes / slice_bytes;
    if (slices >= kFewestInRun) return slices;
    const bool tries = priority <= highest_demand() && MayTryRuns(slice_bytes) && trials_.uses_runs();
    return tries ? kFewestInRun : 1;
  }
  // True if slices travel in runs, or may do so in a trial. See Note [Trials of runs].
  bool MayHaveRuns(Priority priority, int64_t slice_bytes) const {
    return LongestRun(priority, slice_bytes) > 1 || MayTryRuns(slice_bytes);
  }
  // True if slices of the engine's size travel in runs.
  bool has_fast_link() const { return LongestRun(Priority::kCritical, options_.slice_bytes) > 1; }
  static constexpr int64_t kFewestInRun = 4;
  // Runs that fit the yield window, the rest of a stream, and its receive ring, at least.
  static constexpr int64_t kRunsOfWindow = 4;
  static constexpr int64_t kRunsOfRest = 2;
  static constexpr int64_t kRunsOfRing = 4;
  // Lane windows of a kCritical operation.
  static constexpr int64_t kCriticalWindows = 2;
  // True if the windows admit another message of `slices` slices, or it is a head slice.
  bool MayReceive(int lane, WirePhase phase, Priority priority, size_t bytes, int64_t slices) const;
  struct Slice {
    int64_t number;
    std::byte* target;
    size_t bytes;
    WireLink::Length length = WireLink::Length::kExact;
    // If false, the slice does not count in the windows that operations share. See Note [Silent peers].
    bool sender_has_started = true;
    int64_t slices = 1;  // Of the run that begins with this slice.
  };
  // True if a stream whose peer is silent may have `bytes` more in flight, beyond kSilentSlices slices.
  bool MayRunAhead(Priority priority, size_t bytes) const {
    return !rules_.slices_run_ahead_in_half_of_budget ||
           (priority <= highest_demand() &&
            2 * (silent_bytes_ + static_cast<int64_t>(bytes)) <= budget_.bytes());
  }
  // True if the pace admits another credit to a stream that has something in flight. `stream_bytes`: what it
  // has in flight with that credit.
  bool Admits(CreditPace& pace, int64_t stream_bytes) const {
    return pace.Admits({budget_.now_ns(), budget_.rate(), budget_.bytes(), options_.lane_window_bytes},
                       stream_bytes);
  }
  // Counts the slices in flight of the stream in the windows that operations share: its peer, which was
  // silent, has started.
  void CountInSharedWindows(const Channel& channel);
  // Posts a receive and sends the credit for it. `part` is the shape of the whole stream; the sender compares
  // it with its own.
  absl::Status Receive(const Channel& channel, WirePhase phase, Priority priority,
                       const Descriptor& descriptor, const PartShape& part, Slice slice, WireOwner* owner);
  // Tells a peer that this rank expects an empty part on the channel.
  absl::Status AnnounceEmptyPart(const Channel& channel, const Descriptor& descriptor);
  // Applies the background window from now on. Called when the engine gets a context lane between nodes.
  void EnableBackgroundWindow() { uses_background_window_ = true; }
  // True if a credit message or a partial sum of the channel's peer for this operation has arrived, on any
  // channel, or NoteStarted was called. See Note [Silent peers].
  bool HasStarted(const Channel& channel) const {
    return started_peers_.contains({channel.lane, channel.sequence, channel.peer});
  }
  // Registers that an operation of this priority wants to receive. The demand holds until the end of the next
  // poll.
  void RegisterDemand(Priority priority);

  // Sender side.

  struct Credit {
    int64_t slices = 0;  // Slices that may be sent, counted from the start of the stream.
    PartShape part;      // Shape of the whole stream that the receiver expects.
  };
  // The sum of the receiver's credits on a channel. Nothing if no credit message has arrived yet.
  std::optional<Credit> CreditOf(const Channel& channel) const;
  // Slices of the next message of a stream, which begins with `slice`. REQUIRES: `slice` has a credit, and
  // all slices before it have been sent.
  int64_t SlicesOfMessage(const Channel& channel, int64_t slice) const;
  // `slices`: those of the message.
  absl::Status Send(const Channel& channel, int64_t slice, const std::byte* source, size_t bytes,
                    WireOwner* owner, int64_t slices = 1);

  // Credit messages of an operation that have arrived. Credits are new if the number has changed.
  int64_t CreditMessages(int lane, uint64_t sequence) const {
    const auto it = peer_reports_.find(std::pair<int, uint64_t>{lane, sequence});
    return it == peer_reports_.end() ? 0 : it->second.credit_messages;
  }

  // The first peer whose credit for this sequence of the lane describes a different operation, and its
  // descriptor. Compares each descriptor once. REQUIRES: `mine` is the same in all calls for a sequence.
  std::optional<std::pair<int, Descriptor>> FindMismatch(int lane, const Descriptor& mine);

  // Messages of small collectives. `edge` is unique among those of one operation from one rank to another.
  // See Note [Tree collectives].

  // Longest payload in bytes.
  static constexpr size_t kMaxPartialBytes = 896;
  absl::Status SendPartial(int peer, int lane, int edge, const Descriptor& descriptor,
                           std::string_view payload);
  // The payload that `peer` has sent. Null if it has not arrived yet. REQUIRES: Forget has not been called.
  const std::string* PartialFrom(int peer, int lane, uint64_t sequence, int edge) const;

  // Drops the credits, descriptors and partials of a finished operation.
  void Forget(int lane, uint64_t sequence);

  // Point-to-point messages.

  // Declares that the channel's peer has started: it has announced the message.
  void NoteStarted(const Channel& channel) {
    started_peers_.insert({channel.lane, channel.sequence, channel.peer});
  }
  // Drop what is kept for a message that this rank has sent, or has received.
  void ForgetSent(const Channel& channel) { credits_.erase(KeyOf(channel)); }
  void ForgetReceived(const Channel& channel) {
    started_peers_.erase({channel.lane, channel.sequence, channel.peer});
  }

  // Abandons all transfers after a failure. Their owners get no callback.
  void Abandon();
  // Peers of abandoned transfers that could not be canceled, and that still access memory of this rank.
  struct PeersInFlight {
    std::set<int> senders;    // Their messages are being written to this rank's memory.
    std::set<int> receivers;  // This rank's messages to them are being read.
  };
  PeersInFlight AbandonedTransfers();

  // True while transfers are in flight.
  bool busy() const { return !in_flight_.empty(); }

 private:
  struct Transfer {
    WireLink::RequestId request;
    WireOwner* owner;
    int64_t slice;
    bool receive;
    size_t bytes;
    int peer;
    int lane;
    uint64_t sequence;
    int channel;
    int64_t begin_ns;  // See TraceLog::Begin.
    WirePhase phase;
    Priority priority;
    bool shared = false;             // Counts in the windows that operations share.
    bool yielded = false;            // Posted while an operation of higher priority wanted the wire.
    WireBudget::Credit credit = {};  // Of a receive.
    int64_t slices = 1;
    const std::byte* encoded = nullptr;  // The target of a receive, if the slice is encoded.
  };
  struct Run {
    int64_t first;
    int64_t slices;
  };
  struct Granted {
    Credit credit;
    std::vector<Run> runs;  // Of several slices, in order, that have not been sent.
  };
  using Key = std::tuple<int, uint64_t, int, int>;  // Lane, sequence, peer, channel number or edge.
  struct PeerDescriptor {
    int peer;
    Descriptor descriptor;
  };
  // Reports of peers about an operation.
  struct PeerReports {
    std::vector<PeerDescriptor> descriptors;
    size_t compared = 0;  // Descriptors that FindMismatch has compared.
    int64_t credit_messages = 0;
  };

  static Key KeyOf(const Channel& c) { return {c.lane, c.sequence, c.peer, c.number}; }
  absl::StatusOr<bool> PollControlMessages();
  absl::StatusOr<bool> PollTransfers();
  // Counts a complete transfer, and calls its owner.
  void FinishTransfer(const Transfer& transfer);
  absl::Status HandleControlMessage(const WireLink::ControlMessage& message);
  absl::Status HandleCredit(const WireLink::ControlMessage& message);
  absl::Status HandlePartial(const WireLink::ControlMessage& message);
  void NoteDescriptor(int lane, int peer, const Descriptor& descriptor);
  absl::Status SendCredit(const Channel& channel, const Descriptor& descriptor, const PartShape& part,
                          int32_t slices);
  bool MayTryRuns(int64_t slice_bytes) const {
    const int64_t bytes = kFewestInRun * slice_bytes;
    return bytes <= options_.max_run_bytes && budget_.MayTry(bytes);
  }
  // True if runs may be tried on a link that is not so fast that slices travel in runs anyway.
  bool NeedsTrials() const {
    return MayTryRuns(options_.slice_bytes) && budget_.message_bytes() < kFewestInRun * options_.slice_bytes;
  }
  // Bytes in flight of all operations of a lower priority than this.
  int64_t BytesBelow(Priority priority) const;
  Priority highest_demand() const { return std::min(previous_demand_, demand_now_); }
  int64_t& BytesInFlight(int lane, WirePhase phase);
  // Index of a lane in bytes_in_flight_.
  static size_t IndexOf(int lane) { return lane == kMessageLane ? 0 : static_cast<size_t>(lane) + 1; }
  // Adds `bytes` to the counts that depend on the transfer's `shared`.
  void CountShared(const Transfer& transfer, int64_t bytes) {
    (transfer.shared ? bytes_by_priority_[static_cast<size_t>(transfer.priority)] : silent_bytes_) += bytes;
    if (transfer.shared || transfer.slice < kSilentSlices) return;
    ran_ahead_bytes_ += bytes;
    counters_.ran_ahead_peak_bytes = std::max(counters_.ran_ahead_peak_bytes, ran_ahead_bytes_);
  }

  int TagOf(const Channel& channel) const {
    return channel.lane == kMessageLane ? channel.number : tags_.OfLane(channel.lane, channel.number);
  }

  WireLink& link_;
  ControlMail& mail_;
  const TagLayout tags_;
  const EngineOptions& options_;
  const CreditRules rules_;
  EngineCounters& counters_;
  TraceLog& trace_;
  std::vector<Transfer> in_flight_;
  std::vector<Transfer> uncanceled_;  // Abandoned transfers that the link could not cancel.
  // Bytes of posted receives by lane (see IndexOf) and phase. Lanes without an element have none.
  std::vector<std::array<int64_t, kWirePhases>> bytes_in_flight_;
  // Bytes of posted receives with `shared` set, by priority.
  std::array<int64_t, kPriorities> bytes_by_priority_{};
  // Peers that have started an operation, or have announced a message, by lane, sequence and rank.
  absl::flat_hash_set<std::tuple<int, uint64_t, int>> started_peers_;
  int64_t all_bytes_ = 0;        // Bytes of all posted receives.
  int64_t silent_bytes_ = 0;     // Those of them without `shared`.
  int64_t ran_ahead_bytes_ = 0;  // Those of them beyond the first kSilentSlices of their streams.
  WireBudget budget_;
  RunTrials trials_;
  PollTimes poll_times_;
  int64_t yielded_bytes_ = 0;  // Bytes of posted receives with `yielded` set.
  bool uses_background_window_ = false;
  Priority demand_now_ = Priority::kBulk;       // Highest registered in this poll so far.
  Priority previous_demand_ = Priority::kBulk;  // Highest registered in the previous poll.
  absl::flat_hash_map<Key, Granted> credits_;
  absl::flat_hash_map<Key, std::string> partials_;
  // By lane and sequence.
  absl::flat_hash_map<std::pair<int, uint64_t>, PeerReports> peer_reports_;
};

}  // namespace weft
