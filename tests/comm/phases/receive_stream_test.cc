// The bytes for which a stream has credits. See Note [Paced credits].
#include <algorithm>
#include <deque>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/phases/operation_fixture.h"

namespace weft::testing {
namespace {

constexpr int64_t kLaneWindow = 10 * static_cast<int64_t>(kSlice);
// The time at which the streams begin.
constexpr int64_t kBeginNs = 2'000'000;

// A stream of many slices from rank 1, which has started.
class Stream {
 public:
  Stream(const OperationFixture& operation, CreditPace* pace)
      : operation_(operation),
        memory_(static_cast<size_t>(kSlices * kSliceElements)),
        stream_({.lane = 2, .sequence = 1, .peer = 1, .number = 1}, WirePhase::kGather,
                {kSlices * kSliceElements, kSliceElements}, MemoryOf(memory_)) {
    EXPECT_OK(stream_.Credit(operation.context, /*consumed=*/0, /*limit=*/1));
    operation.end.link.FinishAll();
    EXPECT_OK(operation.end.scheduler.Poll(kBeginNs));
    EXPECT_EQ(stream_.done(), 1);
    if (pace != nullptr) stream_.KeepPace(*pace);
  }

  // Gives as many credits as possible. Returns the bytes in flight.
  int64_t CreditAll() {
    EXPECT_OK(stream_.Step(operation_.context, /*consumed=*/0));
    return (stream_.issued() - stream_.done()) * static_cast<int64_t>(kSlice);
  }

 private:
  static constexpr int64_t kSlices = 1000;

  const OperationFixture& operation_;
  std::vector<float> memory_;
  ReceiveStream stream_;
};

// The largest number of bytes of whole slices.
int64_t WholeSlices(double bytes) {
  return static_cast<int64_t>(bytes) / static_cast<int64_t>(kSlice) * static_cast<int64_t>(kSlice);
}

void WithFastLink(absl::FunctionRef<void(const OperationFixture&)> body) {
  WithOperation([&](const OperationFixture& operation) {
    operation.end.options.lane_window_bytes = kLaneWindow;
    operation.MakeLinkFast();
    operation.context.priority = Priority::kCritical;
    body(operation);
    return absl::OkStatus();
  });
}

int64_t WindowOf(const OperationFixture& operation) {
  return WholeSlices(
      static_cast<double>(CreditScheduler::kCriticalShare * operation.end.scheduler.budget_bytes()));
}

TEST(ReceiveStream, FillsTheWindowWithoutAPace) {
  WithFastLink([&](const OperationFixture& operation) {
    Stream stream(operation, nullptr);
    EXPECT_EQ(stream.CreditAll(), WindowOf(operation));
  });
}

TEST(ReceiveStream, KeepsThePaceUntilTheWindowIsFull) {
  WithFastLink([&](const OperationFixture& operation) {
    CreditScheduler& scheduler = operation.end.scheduler;
    CreditPace pace;
    Stream stream(operation, &pace);
    EXPECT_EQ(stream.CreditAll(), kLaneWindow);
    const int64_t window = WindowOf(operation);
    EXPECT_GT(window, 20 * kLaneWindow);
    int64_t in_flight = 0;
    int polls = 0;
    for (int64_t ns = 0; in_flight < window && ns < 1'000'000'000; ns += 10'000, ++polls) {
      EXPECT_OK(scheduler.Poll(kBeginNs + ns));
      in_flight = stream.CreditAll();
      const double paced = 2 * scheduler.rate() * static_cast<double>(ns);
      EXPECT_EQ(in_flight, std::min(window, kLaneWindow + WholeSlices(paced))) << ns;
    }
    EXPECT_EQ(in_flight, window);
    EXPECT_GT(polls, 10);
  });
}

TEST(ReceiveStream, SharesThePaceOfItsPhaseButIsNeverLeftWithoutASlice) {
  WithFastLink([&](const OperationFixture& operation) {
    CreditPace pace;
    std::deque<Stream> streams;
    for (int i = 0; i < 3; ++i) streams.emplace_back(operation, &pace);
    EXPECT_EQ(streams[0].CreditAll(), kLaneWindow);
    EXPECT_EQ(streams[1].CreditAll(), static_cast<int64_t>(kSlice));
    EXPECT_EQ(streams[2].CreditAll(), static_cast<int64_t>(kSlice));
  });
}

}  // namespace
}  // namespace weft::testing
