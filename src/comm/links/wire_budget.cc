#include "src/comm/links/wire_budget.h"

#include <algorithm>

namespace weft {
namespace {

constexpr int64_t kSlicesOfRate = 1024;
// The part of a message that the link must bring in the time of the longest one for the message to be tried.
constexpr double kTriedPart = 0.6;

}  // namespace

void WireBudget::Arrived(const Credit& credit, int64_t bytes, int64_t slices) {
  arrived_bytes_ += bytes;
  slices_of_poll_ += slices;
  if (credit.at_ns > newest_.at_ns) newest_ = credit;
}

bool WireBudget::MayTry(int64_t bytes) const {
  return bytes <= max_message_bytes_ && rate() * message_ns_ >= kTriedPart * static_cast<double>(bytes);
}

void WireBudget::EndPoll() {
  if (slices_of_poll_ == 0) return;
  slices_of_period_ += slices_of_poll_;
  slices_of_poll_ = 0;
  const int64_t flight_ns = now_ns_ - newest_.at_ns;
  if (flight_ns <= 0) return;
  shortest_ns_ = shortest_ns_ == 0 ? flight_ns : std::min(shortest_ns_, flight_ns);
  if (slices_of_period_ > kSlicesOfRate) {
    previous_rate_ = rate_;
    rate_ = 0;
    slices_of_period_ = 0;
  }
  const int64_t granting_ns = newest_.arrived_credit_ns == 0 ? 0 : newest_.at_ns - newest_.arrived_credit_ns;
  const int64_t ns = std::max(flight_ns, granting_ns);
  const auto arrived = static_cast<double>(arrived_bytes_ - newest_.arrived_bytes);
  rate_ = std::max(rate_, arrived / static_cast<double>(ns));
  const double budget = rate() * (kPollsNs + 2 * static_cast<double>(shortest_ns_));
  bytes_ = static_cast<int64_t>(std::min(budget, static_cast<double>(max_bytes_)));
  message_bytes_ = std::min(static_cast<int64_t>(rate() * message_ns_), max_message_bytes_);
}

}  // namespace weft
