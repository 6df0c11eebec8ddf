// Control messages to and from ranks of other nodes that belong to no transfer: signals of point-to-point
// messages, failure notices, questions about late ranks and their answers.
//
// CreditScheduler::Poll receives all control messages, and hands on those of these kinds.
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include "src/comm/links/late_rank_messages.h"
#include "src/comm/links/node_link.h"
#include "weft/comm/engine_options.h"
#include "weft/mesh/wire_link.h"

namespace weft {

class ControlMail {
 public:
  // Lifetime: `link` and `counters` must outlive it.
  ControlMail(WireLink& link, EngineCounters& counters) : link_(link), counters_(counters) {}

  // Sends a control message of any kind. Counts it and its receiver.
  absl::Status Send(int peer, std::string_view bytes);
  // Counts a rank to which this one sends anything.
  void CountPeer(int peer);
  // Sends the remaining control messages after a failure, when the scheduler is no longer polled. False once
  // all have been sent, or the transport has failed.
  bool Flush() { return link_.HasUnsentControlMessages() && link_.Poll().ok(); }

  // Keeps a message that has arrived until it is taken. REQUIRES: it is of one of the kinds below.
  // Errors: kInternal (the bytes are malformed).
  absl::Status Handle(const WireLink::ControlMessage& message);

  // Signals of point-to-point messages. They arrive in order, also relative to credits of messages.

  struct RawSignal {
    int peer;
    std::string bytes;  // Empty: a credit for this rank's message `number` has arrived.
    uint64_t number = 0;
  };
  // Longest signal in bytes.
  static constexpr size_t kMaxSignalBytes = WireLink::kMaxControlMessageBytes - 1;
  absl::Status SendSignal(int peer, std::string_view bytes);
  // Adds the signal of a credit of `peer` for this rank's message `number`.
  void AddCreditSignal(int peer, uint64_t number) { signals_.push_back({peer, {}, number}); }
  std::vector<RawSignal> TakeSignals() { return std::exchange(signals_, {}); }

  // Failure notices.

  // Sends a failure notice to all of `ranks`. Best effort: a rank that it does not reach notices by its
  // deadline.
  void BroadcastFailure(const NodeLink::FailureNotice& notice, const std::vector<int>& ranks);
  // The first failure notice that has arrived.
  const std::optional<NodeLink::FailureNotice>& failure() const { return failure_; }

  // Questions about late ranks.

  // Best effort: a rank that a question does not reach counts as one that does not answer.
  void Ask(const LateRankQuestion& question);
  void Answer(int peer, const LateRankAnswer& answer);
  // Questions of others, and answers to this rank, that have arrived.
  std::vector<LateRankQuestion> TakeQuestions() { return std::exchange(questions_, {}); }
  std::vector<LateRankAnswer> TakeAnswers() { return std::exchange(answers_, {}); }

 private:
  absl::Status HandleFailure(const WireLink::ControlMessage& message);
  absl::Status HandleSignal(const WireLink::ControlMessage& message);
  // A rank that the message does not reach notices by its own deadline.
  void TrySend(int peer, std::string_view bytes);

  WireLink& link_;
  EngineCounters& counters_;
  absl::flat_hash_set<int> peers_;  // Ranks to which this one has sent anything.
  std::vector<RawSignal> signals_;
  std::optional<NodeLink::FailureNotice> failure_;
  std::vector<LateRankQuestion> questions_;
  std::vector<LateRankAnswer> answers_;
};

}  // namespace weft
