// Pace at which a receiver gives the credits of one phase of an operation.
//
// Note [Paced credits]
// Problem: a gather receives a part from each of several nodes. If a receiver gave the credits of a whole
// window at once, a sender would send that window to the receiver whose credits arrive first, then one to the
// next receiver. Other senders may have begun with the same receiver. Its link then brings the bytes of one
// after the other, while the links of other receivers are idle. They do not make up for that time: all links
// carry equally many bytes.
// Rule: a receiver gives credits to its senders in turn, a slice or a run each. At the start of a phase, they
// are for a lane window. From then on, credits come at most kPace times as fast as the measured rate of the
// link would bring their bytes (Note [Wire budget]).
// Why it suffices: a sender finds credits of all receivers at any time, and serves them in turn. So all links
// are busy from the start to the end of the phase. The windows bound what is in flight, as they do without a
// pace. A measured rate that is too low may double in each round trip. A stream that has nothing in flight is
// never held back, so that each wait ends with a slice of its own.
// In reductions, the sender with the fewest credits is always the next one.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/core/status.h"

namespace weft {

class CreditPace {
 public:
  // True if `bytes` more may have credits. `rate`: of the link, in bytes a nanosecond; 0 if it is unknown.
  // `at_once`: bytes that may have credits at the start of the phase.
  bool Allows(int64_t bytes, int64_t now_ns, double rate, int64_t at_once) const {
    if (rate == 0 || credited_bytes_ == 0) return true;
    const double later = kPace * rate * static_cast<double>(now_ns - begin_ns_);
    return static_cast<double>(credited_bytes_ + bytes - at_once) <= later;
  }
  // Credits for `bytes` more have been given.
  void Count(int64_t bytes, int64_t now_ns) {
    if (credited_bytes_ == 0) begin_ns_ = now_ns;
    credited_bytes_ += bytes;
  }

 private:
  static constexpr double kPace = 2;

  int64_t begin_ns_ = 0;  // The time of the first credit.
  int64_t credited_bytes_ = 0;
};

// Gives credits to `streams` in turn, as many as possible. `credit` gives one to a stream, and returns
// whether it did. Returns true if any was given.
template <typename Streams, typename Credit>
absl::StatusOr<bool> CreditInTurn(Streams& streams, const Credit& credit) {
  std::vector<typename Streams::value_type*> open;  // Those that got a credit in the last turn.
  for (auto& stream : streams) {
    WEFT_ASSIGN_OR_RETURN(const bool credited, credit(stream));
    if (credited) open.push_back(&stream);
  }
  const bool advanced = !open.empty();
  while (!open.empty()) {
    size_t still_open = 0;
    for (auto* const stream : open) {
      WEFT_ASSIGN_OR_RETURN(const bool credited, credit(*stream));
      if (credited) open[still_open++] = stream;
    }
    open.resize(still_open);
  }
  return advanced;
}

}  // namespace weft
