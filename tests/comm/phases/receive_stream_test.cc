// The bytes for which a stream has credits. See Note [Paced credits].
#include <algorithm>
#include <deque>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/phases/operation_fixture.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

constexpr int64_t kLaneWindow = 10 * static_cast<int64_t>(kSlice);
// That of MakeLinkFast, in bytes a nanosecond.
constexpr double kRate = 50 * static_cast<double>(kSlice) / 500'000;
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
    return bytes_in_flight();
  }
  absl::StatusOr<bool> CreditOne() {
    return stream_.Credit(operation_.context, /*consumed=*/0, /*limit=*/kSlices);
  }
  // Lets the messages arrive for which there are credits.
  void FinishReceives() {
    for (const auto& [request, transfer] : operation_.end.link.in_flight) {
      const auto* memory = static_cast<const float*>(transfer.memory);
      if (memory >= memory_.data() && memory < memory_.data() + memory_.size())
        operation_.end.link.Finish(request);
    }
  }
  int64_t bytes_in_flight() const {
    return (stream_.issued() - stream_.done()) * static_cast<int64_t>(kSlice);
  }
  bool finished() const { return stream_.finished(); }

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
  return WholeSlices(static_cast<double>(operation.end.scheduler.budget_bytes()));
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
    // The last message may take more than is left.
    const auto is_near = [&](double bytes) {
      const double run =
          static_cast<double>(kSlice) *
          static_cast<double>(scheduler.LongestRun(Priority::kCritical, static_cast<int64_t>(kSlice)));
      return AllOf(Ge(bytes), Le(bytes + run));
    };
    EXPECT_THAT(stream.CreditAll(), is_near(kLaneWindow));
    const int64_t window = WindowOf(operation);
    EXPECT_GT(window, 10 * kLaneWindow);
    int64_t in_flight = 0;
    int polls = 0;
    for (int64_t ns = 0; in_flight < window && ns < 1'000'000'000; ns += 10'000, ++polls) {
      EXPECT_OK(scheduler.Poll(kBeginNs + ns));
      in_flight = stream.CreditAll();
      const double paced = static_cast<double>(kLaneWindow) + 2 * kRate * static_cast<double>(ns);
      if (paced >= static_cast<double>(window)) continue;
      EXPECT_THAT(in_flight, is_near(paced)) << ns;
    }
    EXPECT_EQ(in_flight, window);
    EXPECT_GT(polls, 10);
  });
}

TEST(ReceiveStream, HasASliceWhateverItsPhaseHasInFlight) {
  WithFastLink([&](const OperationFixture& operation) {
    CreditPace pace;
    std::deque<Stream> streams;
    for (int i = 0; i < 3; ++i) streams.emplace_back(operation, &pace);
    EXPECT_GE(streams[0].CreditAll(), kLaneWindow);
    for (const int i : {1, 2}) {
      const int64_t in_flight = streams[static_cast<size_t>(i)].CreditAll();
      EXPECT_GE(in_flight, static_cast<int64_t>(kSlice));
      EXPECT_LT(in_flight, kLaneWindow + static_cast<int64_t>(kSlice));
    }
  });
}

TEST(ReceiveStream, HasTwiceItsShareOfTheWindowInFlight) {
  for (const int64_t streams : {2, 3, 7, 100}) {
    WithFastLink([&](const OperationFixture& operation) {
      CreditScheduler& scheduler = operation.end.scheduler;
      CreditPace pace;
      Stream stream(operation, &pace);
      for (int64_t other = 1; other < streams; ++other) pace.AddStream();
      const auto credit_for_long = [&](int64_t begin_ns) {
        int64_t in_flight = 0;
        for (int64_t ns = 0; ns < 10'000'000; ns += 100'000) {
          EXPECT_OK(scheduler.Poll(begin_ns + ns));
          in_flight = stream.CreditAll();
        }
        return in_flight;
      };
      // Two of three shares, if it is one of two streams.
      const auto share =
          static_cast<double>(scheduler.budget_bytes()) / static_cast<double>(std::max<int64_t>(streams, 3));
      EXPECT_EQ(credit_for_long(kBeginNs), WholeSlices(2 * share)) << streams;
      // The others need no more credits.
      for (int64_t other = 1; other < streams; ++other) pace.RemoveStream();
      EXPECT_EQ(credit_for_long(kBeginNs + 10'000'000), WindowOf(operation));
    });
  }
}

// Streams of one phase, the first of which has a sender that has stopped.
void ExpectOthersToFinish(const OperationFixture& operation, int count) {
  CreditPace pace;
  std::deque<Stream> streams;
  for (int i = 0; i < count; ++i) streams.emplace_back(operation, &pace);
  const auto is_finished = [&] {
    return std::all_of(streams.begin() + 1, streams.end(),
                       [](const Stream& stream) { return stream.finished(); });
  };
  for (int64_t ns = 0; ns < 1'000'000'000 && !is_finished(); ns += 100'000) {
    EXPECT_OK(operation.end.scheduler.Poll(kBeginNs + ns));
    EXPECT_OK(CreditInTurn(pace, streams, [](Stream& stream) { return stream.CreditOne(); }));
    std::for_each(streams.begin() + 1, streams.end(), [](Stream& stream) { stream.FinishReceives(); });
  }
  EXPECT_TRUE(is_finished()) << count << " streams";
  EXPECT_GT(streams.front().bytes_in_flight(), 0);
}

TEST(ReceiveStream, GoesOnWhileTheSenderOfAnotherHasStopped) {
  for (const Priority priority : {Priority::kBulk, Priority::kCritical}) {
    for (const int streams : {2, 3, 7}) {
      WithOperation([&](const OperationFixture& operation) {
        operation.end.options.lane_window_bytes = kLaneWindow;
        operation.context.priority = priority;
        ExpectOthersToFinish(operation, streams);
        return absl::OkStatus();
      });
      WithFastLink([&](const OperationFixture& operation) {
        operation.context.priority = priority;
        ExpectOthersToFinish(operation, streams);
      });
    }
  }
}

}  // namespace
}  // namespace weft::testing
