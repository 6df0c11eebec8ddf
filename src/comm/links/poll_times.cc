#include "src/comm/links/poll_times.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

constexpr double kBytesOfPoll = 1 << 20;
// A poll takes little time beside a mebibyte.
constexpr int64_t kShortestNs = 25'000;
constexpr int64_t kPollsOfStart = 8;
constexpr double kPollsOfEnd = 2;
// Peers give credits at their polls, so a rate of sends is that of a longer time than two of these.
constexpr int64_t kMeasurementNs = 600'000;

}  // namespace

void PollTimes::BeginSend(int64_t bytes, int64_t now_ns) {
  outgoing_bytes_ += bytes;
  if (const int64_t ns = now_ns - measured_from_ns_; ns >= kMeasurementNs) {
    previous_send_rate_ =
        std::exchange(send_rate_, static_cast<double>(sent_bytes_) / static_cast<double>(ns));
    sent_bytes_ = 0;
    measured_from_ns_ = now_ns;
  }
  sent_bytes_ += bytes;
}

int64_t PollTimes::IntervalNs(int64_t now_ns, double rate, int64_t incoming_bytes, bool any_silent) const {
  if (rate == 0) rate = std::max(send_rate_, previous_send_rate_);
  if (rate == 0) return std::numeric_limits<int64_t>::max();
  const int64_t mebibyte_ns = std::max(static_cast<int64_t>(kBytesOfPoll / rate), kShortestNs);
  int64_t ns = std::min(mebibyte_ns, std::max(mebibyte_ns, now_ns - begun_ns_) / kPollsOfStart);
  if (const int64_t bytes = std::max(incoming_bytes, outgoing_bytes_); bytes > 0 && !any_silent)
    ns = std::min(ns, static_cast<int64_t>(static_cast<double>(bytes) / (kPollsOfEnd * rate)));
  return ns;
}

}  // namespace weft
