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
// the window in flight, and at most two thirds of it while other streams need credits: a sender that has
// stopped does not take the window from the others.
// Why it suffices: a sender finds credits of all receivers at any time, and serves them in turn. So all links
// are busy from the start to the end of the phase. The windows bound what is in flight, as they do without a
// pace. A measured rate that is too low may double in each round trip. The pace and the share never refuse
// the only message of a stream, so that they cannot stop one.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <absl/container/inlined_vector.h>
#include <absl/status/statusor.h>

#include "weft/core/status.h"

namespace weft {

class CreditPace {
 public:
  // Shares of the window that a stream may have.
  static constexpr int64_t kShares = 2;

  // What the receiver knows of its link, and of its windows in bytes.
  struct Link {
    int64_t now_ns;
    double rate;  // Bytes in a nanosecond; 0 if it is unknown.
    int64_t budget;
    int64_t lane_window;  // REQUIRES: the same in all calls.
  };
  // True if a stream that has something in flight may have `stream_bytes` in flight now. Call it for other
  // streams, too, before Count.
  bool Admits(const Link& link, int64_t stream_bytes) {
    Advance(link);
    const int64_t window = std::max(link.lane_window, link.budget);
    const int64_t shares = open_streams_ > 1 ? std::max(open_streams_, kShares + 1) : 1;
    return allowed_bytes_ > 0 && stream_bytes <= kShares * window / shares;
  }
  // Credits for `bytes` more have been given. A run may take more than was allowed. What is given whatever
  // the pace leaves a debt of at most a lane window.
  void Count(int64_t bytes) {
    allowed_bytes_ = std::max(allowed_bytes_ - static_cast<double>(bytes), -burst_bytes_);
  }

  // A stream needs credits, or needs no more.
  void AddStream() { ++open_streams_; }
  void RemoveStream() { --open_streams_; }

  // Position of the stream that gets the next credit.
  size_t next_turn() const { return next_turn_; }
  void SetNextTurn(size_t position) { next_turn_ = position; }

 private:
  static constexpr double kPace = 2;
  // Two intervals between polls of a rank that computes, and a part of one.
  static constexpr double kGapNs = 600'000;
  // Allows what the link can bring in the time since the last call.
  void Advance(const Link& link) {
    burst_bytes_ = static_cast<double>(link.lane_window);
    const double speed = kPace * link.rate;
    const bool is_paced = begun_ && speed > 0;
    const double later = allowed_bytes_ + speed * static_cast<double>(link.now_ns - last_ns_);
    allowed_bytes_ = is_paced ? std::min(later, burst_bytes_ + speed * kGapNs) : burst_bytes_;
    begun_ = true;
    last_ns_ = link.now_ns;
  }

  bool begun_ = false;
  int64_t last_ns_ = 0;     // The time of the last call.
  double burst_bytes_ = 0;  // Bytes that may have credits at the start of the phase: a lane window.
  double allowed_bytes_ = 0;
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
  // Those that got a credit in the last turn, later. Groups of few nodes need no allocation.
  absl::InlinedVector<Entry, 8> open;
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
