// Pace at which a receiver gives the credits of one phase of an operation.
//
// Note [Paced credits]
// Problem: a gather receives a part from each of several nodes. If a receiver gave the credits of a whole
// window at once, a sender would send that window to the receiver whose credits arrive first, then one to the
// next receiver. Other senders may have begun with the same receiver. Its link then brings the bytes of one
// after the other, while the links of other receivers are idle. They do not make up for that time: all links
// carry equally many bytes.
// Rule: credits are given to the senders in turn, each for a slice or a run. In reductions, the sender with
// the fewest credits is always the next one. At the start of a phase, credits are for a lane window. From
// then on, they come at most kPace times as fast as the measured rate of the link would bring their bytes
// (Note [Wire budget]). What a phase has not used in kGapNs is lost. A stream has at most twice its share of
// the budget in flight, so that a late sender does not take the windows from the others.
// Why it suffices: a sender finds credits of all receivers at any time, and serves them in turn. So all links
// are busy from the start to the end of the phase. The windows bound what is in flight, as they do without a
// pace. A measured rate that is too low may double in each round trip. Each stream may have one message in
// flight whatever the pace, so that each wait ends with a slice of its own.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/core/status.h"

namespace weft {

class CreditPace {
 public:
  // True if more bytes may have credits now. `rate`: of the link, in bytes a nanosecond; 0 if it is unknown.
  // `at_once`: bytes that may have credits at the start of the phase. REQUIRES: it is the same in all calls.
  bool Allows(int64_t now_ns, double rate, int64_t at_once) {
    const auto start = static_cast<double>(at_once);
    if (begun_ && rate > 0) {
      const double later = kPace * rate * static_cast<double>(now_ns - last_ns_);
      allowed_bytes_ = std::min(allowed_bytes_ + later, start + kPace * rate * kGapNs);
    } else {
      allowed_bytes_ = start;
    }
    begun_ = true;
    last_ns_ = now_ns;
    most_debt_ = start;
    return allowed_bytes_ > 0;
  }
  // Credits for `bytes` more have been given. A run may take more than was allowed. What is given whatever
  // the pace leaves a debt of at most a lane window.
  void Count(int64_t bytes) {
    allowed_bytes_ = std::max(allowed_bytes_ - static_cast<double>(bytes), -most_debt_);
  }

  // A stream needs credits, or needs no more.
  void AddStream() { ++open_streams_; }
  void RemoveStream() { --open_streams_; }
  int64_t open_streams() const { return open_streams_; }

  // Position of the stream that gets the next credit.
  size_t next_turn() const { return next_turn_; }
  void SetNextTurn(size_t position) { next_turn_ = position; }

 private:
  static constexpr double kPace = 2;
  // Two intervals between polls of a rank that computes, and a part of one.
  static constexpr double kGapNs = 600'000;

  bool begun_ = false;
  int64_t last_ns_ = 0;  // The time of the last call of Allows.
  double allowed_bytes_ = 0;
  double most_debt_ = 0;
  int64_t open_streams_ = 0;
  size_t next_turn_ = 0;
};

// Gives credits to `streams` in turn, as many as possible, beginning behind the last that got one. `credit`
// gives one to a stream, and returns whether it did. Returns true if any was given.
template <typename Streams, typename Credit>
absl::StatusOr<bool> CreditInTurn(CreditPace& pace, Streams& streams, const Credit& credit) {
  struct Entry {
    size_t position;
    typename Streams::value_type* stream;
  };
  std::vector<Entry> open;  // Later those that got a credit in the last turn.
  open.reserve(streams.size());
  for (auto& stream : streams) open.push_back({open.size(), &stream});
  if (open.empty()) return false;
  std::rotate(open.begin(), open.begin() + static_cast<ptrdiff_t>(pace.next_turn() % open.size()),
              open.end());
  bool advanced = false;
  while (!open.empty()) {
    size_t credited = 0;
    for (const Entry& entry : open) {
      WEFT_ASSIGN_OR_RETURN(const bool got_one, credit(*entry.stream));
      if (!got_one) continue;
      pace.SetNextTurn(entry.position + 1);
      open[credited++] = entry;
    }
    advanced |= credited > 0;
    open.resize(credited);
  }
  return advanced;
}

}  // namespace weft
