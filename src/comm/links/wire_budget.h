// Budget of bytes in flight to this rank: the measured rate times the time from a credit to its slice.
//
// Note [Wire budget]
// Problem: a window of constant size is too small for a fast link, or a long one. A receiver looks at the
// wire once in a poll interval, and so does its sender. With the constant windows of EngineOptions, a link
// of 100 Gbit/s is idle most of that time.
// Rule: the budget is the measured rate of the link times the time from a credit to its slice: two poll
// intervals, and twice the shortest time that was measured. Windows are at least their constants, and
// together they grow up to the budget.
//   - The rate is the largest of about the last kSlicesOfRate slices. A sample is the bytes that arrived
//     between the credit for a slice and its arrival, divided by that time, or by the time in which their
//     credits were given if that is longer: bytes that waited in a socket arrive faster than the link is.
//     While a window holds a fast link back, each sample allows a larger window, until the link itself is the
//     limit.
//   - The shortest time is that since the engine was created. Slices that queue behind others do not
//     lengthen it, so a queue does not feed itself.
// Polls: see Note [Poll intervals].
// Messages: one message may hold what the link brings in 0.1 ms, or in 0.25 ms over a link without a
// rendezvous protocol. See Note [Runs of slices].
// On a short link of any speed, an urgent exchange thus finds less than a millisecond of other data ahead of
// it, or the constant windows. If ranks of a node share the link, this is the data of each of them: in
// simulations of four ranks at 25 Gbit/s, it waited for 1.7 to 2.1 ms, at 100 Gbit/s for 0.9 ms.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

class WireBudget {
 public:
  // `max_bytes`: the largest budget. `has_rendezvous`: see WireLink.
  WireBudget(int64_t max_bytes, bool has_rendezvous)
      : max_bytes_(max_bytes),
        message_ns_(has_rendezvous ? kMessageNs : kMessageWithoutRendezvousNs),
        max_message_bytes_(static_cast<int64_t>(static_cast<double>(max_bytes) * message_ns_ / kPollsNs)) {}

  // The state of the link when the credit for a slice was given.
  struct Credit {
    int64_t at_ns = 0;
    int64_t arrived_bytes = 0;
    int64_t arrived_credit_ns = 0;  // The time of the newest credit whose slice had arrived.
  };
  void BeginPoll(int64_t now_ns) { now_ns_ = now_ns; }
  int64_t now_ns() const { return now_ns_; }  // The time of the last poll.
  Credit Grant() const { return {now_ns_, arrived_bytes_, newest_.at_ns}; }
  // The slices of a credit have arrived. Those that arrive in one poll count together, in EndPoll.
  void Arrived(const Credit& credit, int64_t bytes, int64_t slices);
  void EndPoll();

  // 0 until the first slice has arrived.
  int64_t bytes() const { return bytes_; }
  // Bytes in a nanosecond. 0 until the first slice has arrived.
  double rate() const { return std::max(rate_, previous_rate_); }
  // Bytes that one message may have: at most a sixth of the budget, or five twelfths without a rendezvous
  // protocol. 0 until the first slice has arrived.
  int64_t message_bytes() const { return message_bytes_; }
  // True if messages of so many bytes may be tried: the link brings them in little more than the time of the
  // longest message, and the budget has room for two at least. See Note [Trials of runs].
  bool MayTry(int64_t bytes) const;

 private:
  // Two intervals between polls of the progress thread, and a part of one.
  static constexpr double kPollsNs = 600'000;
  // The longest message takes this time on the link: several times as long as the work for a message.
  static constexpr double kMessageNs = 100'000;
  static constexpr double kMessageWithoutRendezvousNs = 250'000;

  const int64_t max_bytes_;
  const double message_ns_;          // Of the longest message.
  const int64_t max_message_bytes_;  // message_ns_ / kPollsNs of max_bytes_.
  int64_t now_ns_ = 0;
  int64_t arrived_bytes_ = 0;
  Credit newest_;  // Of the slices that have arrived.
  int64_t slices_of_poll_ = 0;
  int64_t shortest_ns_ = 0;  // 0: not measured.
  // Bytes in a nanosecond, of the slices of this period and the one before.
  double rate_ = 0, previous_rate_ = 0;
  int64_t slices_of_period_ = 0;
  int64_t bytes_ = 0;
  int64_t message_bytes_ = 0;
};

}  // namespace weft
