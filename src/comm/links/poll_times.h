// Interval between polls of the wire by a rank whose threads all compute.
//
// Note [Poll intervals]
// Problem: one poll for each mebibyte that the link moves keeps the link busy in the middle of an operation,
// because credits for more are in flight (Note [Wire budget]). But a rank finds the first credits of an
// operation, and its last bytes, up to an interval late, and no other bytes fill that time. If the ranks of a
// node share a link, a mebibyte takes each of them longer, and an operation of some mebibytes loses a quarter
// of its time.
// Rule: the interval is the time in which the link moves a mebibyte to or from this rank, at least 25 us. It
// is shorter at both ends of an operation, but at least 10 us:
//   - Start: an eighth of the time since an operation has begun, and at least an eighth of a mebibyte's.
//   - End: at most half of the time that the bytes in flight take at the measured rate. They come faster once
//     the other ranks of the node have theirs. This does not apply while some of the bytes are those of a
//     peer that may not have started: they could come at any time (Note [Silent peers]).
// Why it suffices: the first credits are found an eighth late, and the last bytes soon after they are there.
// The intervals grow, so the start of an operation adds about 25 polls at most, and its end a few. There are
// fewer on slower links, and none at the start if a mebibyte takes more than 2 ms: the progress thread polls
// every 250 us in any case. If windows hold few bytes, polls are frequent in the middle of an operation, too:
// the link would be idle until the next one.
// Rate: that of the bytes that arrive (WireBudget). A rank that has only sent, such as the root of a
// broadcast, takes the rate of its sends, which the credits of their receivers bound.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <limits>

namespace weft {

class PollTimes {
 public:
  // An operation between nodes has begun.
  void BeginOperation(int64_t now_ns) { begun_ns_ = now_ns; }
  void BeginSend(int64_t bytes, int64_t now_ns);
  void EndSend(int64_t bytes) { outgoing_bytes_ -= bytes; }
  // Drops the sends in flight.
  void Abandon() { outgoing_bytes_ = 0; }

  // Very long if no rate is known. `rate`: bytes that arrive in a nanosecond; 0 if it is not measured.
  // `incoming_bytes`: those of all receives in flight. `any_silent`: some are from peers that may not have
  // started.
  int64_t IntervalNs(int64_t now_ns, double rate, int64_t incoming_bytes, bool any_silent) const;

 private:
  int64_t begun_ns_ = std::numeric_limits<int64_t>::min() / 2;  // Long ago.
  int64_t outgoing_bytes_ = 0;                                  // Of sends in flight.
  // Rate of sends, in bytes of a nanosecond, in the last two measurements, and the bytes since the second.
  double send_rate_ = 0, previous_send_rate_ = 0;
  int64_t sent_bytes_ = 0;
  int64_t measured_from_ns_ = 0;
};

}  // namespace weft
