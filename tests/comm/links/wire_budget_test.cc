// The budget of bytes in flight: measured rates and times.
#include "src/comm/links/wire_budget.h"

#include <deque>
#include <limits>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kSlice = 60'000;
constexpr int64_t kMicrosecond = 1'000;

// A link with a rate, and a time from a credit to its slice, that a receiver polls from time to time.
class Link {
 public:
  Link(double rate, int64_t delay_ns, int64_t poll_ns)
      : rate_(rate), delay_ns_(delay_ns), poll_ns_(poll_ns) {}

  // Receives that many slices, with as many in flight as the budget allows, and at least `fewest`.
  void Receive(WireBudget& budget, int slices, int64_t fewest) {
    int arrived = 0;
    while (arrived < slices) {
      now_ns_ += poll_ns_;
      budget.BeginPoll(now_ns_);
      while (!in_flight_.empty() && in_flight_.front().second <= now_ns_) {
        budget.Arrived(in_flight_.front().first, kSlice, 1);
        in_flight_.pop_front();
        ++arrived;
      }
      budget.EndPoll();
      const int64_t allowed = std::max(fewest, budget.bytes() / kSlice);
      while (std::ssize(in_flight_) < allowed) {
        free_ns_ = std::max(free_ns_, now_ns_ + delay_ns_) + static_cast<int64_t>(kSlice / rate_);
        in_flight_.emplace_back(budget.Grant(), free_ns_);
      }
    }
  }

 private:
  const double rate_;  // Bytes in a nanosecond.
  const int64_t delay_ns_, poll_ns_;
  int64_t now_ns_ = 0, free_ns_ = 0;
  std::deque<std::pair<WireBudget::Credit, int64_t>> in_flight_;  // With the time of arrival.
};

constexpr int64_t kNoLimit = int64_t{1} << 40;

TEST(WireBudget, IsNothingUntilASliceHasArrived) {
  WireBudget budget(kNoLimit, /*has_rendezvous=*/true);
  budget.BeginPoll(5);
  budget.EndPoll();
  EXPECT_EQ(budget.bytes(), 0);
}

TEST(WireBudget, GrowsToWhatALinkOfAnyRateAndLengthHoldsAndNotMuchFurther) {
  for (const double rate : {0.125, 1.25, 12.5, 50.0}) {
    for (const int64_t delay_us : {10, 100, 1'000, 10'000}) {
      for (const int64_t poll_us : {1, 250, 500}) {
        const int64_t delay = delay_us * kMicrosecond, poll = poll_us * kMicrosecond;
        WireBudget budget(kNoLimit, /*has_rendezvous=*/true);
        Link(rate, delay, poll).Receive(budget, 20'000, 8);
        const auto held = rate * static_cast<double>(delay + poll);
        EXPECT_GE(static_cast<double>(budget.bytes()), held) << rate << " " << delay << " " << poll;
        // A poll finds up to a slice more than its time would bring.
        const double most = 1.1 * (rate * static_cast<double>(1'000'000 + 2 * (delay + poll)) + 4 * kSlice);
        EXPECT_LE(static_cast<double>(budget.bytes()), most) << rate << " " << delay << " " << poll;
      }
    }
  }
}

TEST(WireBudget, FollowsALinkThatBecomesSlower) {
  WireBudget budget(kNoLimit, /*has_rendezvous=*/true);
  Link(12.5, 20 * kMicrosecond, kMicrosecond).Receive(budget, 10'000, 8);
  const int64_t fast = budget.bytes();
  WireBudget slower = budget;
  Link(1.25, 20 * kMicrosecond, kMicrosecond).Receive(slower, 10'000, 8);
  EXPECT_LT(slower.bytes(), fast / 5);
}

TEST(WireBudget, DoesNotGrowByAQueueOfItsOwn) {
  WireBudget budget(kNoLimit, /*has_rendezvous=*/true);
  Link link(0.125, 20 * kMicrosecond, kMicrosecond);
  link.Receive(budget, 1'000, 100);
  const int64_t first = budget.bytes();
  link.Receive(budget, 10'000, 100);
  EXPECT_LE(budget.bytes(), first * 1.1);
}

TEST(WireBudget, DoesNotTakeBytesThatWaitedInASocketForAFastLink) {
  WireBudget budget(kNoLimit, /*has_rendezvous=*/true);
  const auto arrive = [&](const std::deque<WireBudget::Credit>& credits) {
    for (const WireBudget::Credit& credit : credits) budget.Arrived(credit, kSlice, 1);
    budget.EndPoll();
  };
  budget.BeginPoll(1'000'000);
  const std::deque<WireBudget::Credit> first(8, budget.Grant());
  budget.BeginPoll(6'000'000);  // The rank has slept. It finds a half of the slices, then the others.
  arrive({first.begin(), first.begin() + 4});
  const WireBudget::Credit next = budget.Grant();
  budget.BeginPoll(6'010'000);
  arrive({first.begin() + 4, first.end()});
  budget.BeginPoll(6'050'000);
  arrive({next});
  // 8 slices in 5 ms, for a millisecond and twice the 50 us of the last one.
  EXPECT_LE(budget.bytes(), static_cast<int64_t>(8 * kSlice / 5.0 * 1.1 * 1.1));
}

TEST(WireBudget, HasALimit) {
  WireBudget budget(3 * kSlice, /*has_rendezvous=*/true);
  Link(12.5, 1'000 * kMicrosecond, kMicrosecond).Receive(budget, 1'000, 8);
  EXPECT_EQ(budget.bytes(), 3 * kSlice);
}

TEST(WireBudget, HasLongerMessagesWithoutRendezvous) {
  constexpr double kRate = 1.25;
  for (const bool has_rendezvous : {true, false}) {
    WireBudget budget(kNoLimit, has_rendezvous);
    Link(kRate, 100 * kMicrosecond, kMicrosecond).Receive(budget, 5'000, 8);
    const double message = kRate * (has_rendezvous ? 100 : 250) * kMicrosecond;
    EXPECT_NEAR(static_cast<double>(budget.message_bytes()), message, message / 10);
    EXPECT_TRUE(budget.MayTry(static_cast<int64_t>(1.5 * message)));
    EXPECT_FALSE(budget.MayTry(static_cast<int64_t>(2.0 * message)));

    WireBudget limited(24 * kSlice, has_rendezvous);
    Link(100 * kRate, 100 * kMicrosecond, kMicrosecond).Receive(limited, 5'000, 8);
    EXPECT_EQ(limited.message_bytes(), (has_rendezvous ? 4 : 10) * kSlice);
  }
}

TEST(WireBudget, TakesTheLargestLimit) {
  for (const bool has_rendezvous : {true, false}) {
    WireBudget budget(std::numeric_limits<int64_t>::max() / 4, has_rendezvous);
    Link(12.5, 100 * kMicrosecond, kMicrosecond).Receive(budget, 1'000, 8);
    EXPECT_GT(budget.message_bytes(), 4 * kSlice);
  }
}

}  // namespace
}  // namespace weft
