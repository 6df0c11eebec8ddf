// The bytes that a stream has in flight. See Note [Even streams].
#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/phases/operation_fixture.h"

namespace weft::testing {
namespace {

constexpr int64_t kLaneWindow = 10 * static_cast<int64_t>(kSlice);

// A stream of many slices from rank 1, which has started.
class Stream {
 public:
  Stream(const OperationFixture& operation, int64_t sender_nodes)
      : operation_(operation),
        memory_(static_cast<size_t>(kSlices * kSliceElements)),
        stream_({.lane = 2, .sequence = 1, .peer = 1, .number = 1}, WirePhase::kGather,
                {kSlices * kSliceElements, kSliceElements}, MemoryOf(memory_)) {
    stream_.SetSenderNodes(sender_nodes);
    EXPECT_OK(stream_.Credit(operation.context, /*consumed=*/0, /*limit=*/1));
    operation.end.link.FinishAll();
    EXPECT_OK(operation.end.scheduler.Poll(/*now_ns=*/2'000'000));
    EXPECT_EQ(stream_.done(), 1);
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
int64_t WholeSlices(int64_t bytes) { return bytes - bytes % static_cast<int64_t>(kSlice); }

void WithFastLink(absl::FunctionRef<void(const OperationFixture&)> body) {
  WithOperation([&](const OperationFixture& operation) {
    operation.end.options.lane_window_bytes = kLaneWindow;
    operation.MakeLinkFast();
    body(operation);
    return absl::OkStatus();
  });
}

TEST(ReceiveStream, HasAShareOfTheBudgetWhileAThreadWaits) {
  for (const bool for_release : {false, true}) {
    for (const int64_t nodes : {2, 3, 7, 100}) {
      WithFastLink([&](const OperationFixture& operation) {
        operation.context.priority = Priority::kCritical;
        (for_release ? operation.context.is_release_awaited : operation.context.is_ready_awaited) = true;
        Stream stream(operation, nodes);
        const int64_t in_flight = stream.CreditAll();
        const int64_t share = operation.end.scheduler.budget_bytes() / nodes;
        EXPECT_GT(operation.end.scheduler.budget_bytes(), 10 * kLaneWindow);
        EXPECT_EQ(in_flight, WholeSlices(std::max(share, 2 * kLaneWindow))) << nodes;
      });
    }
  }
}

TEST(ReceiveStream, HasTheWholeBudgetIfNoThreadWaitsOrOneNodeSends) {
  for (const bool is_awaited : {false, true}) {
    WithFastLink([&](const OperationFixture& operation) {
      operation.context.priority = Priority::kCritical;
      operation.context.is_ready_awaited = is_awaited;
      Stream stream(operation, /*sender_nodes=*/is_awaited ? 1 : 3);
      EXPECT_EQ(stream.CreditAll(),
                WholeSlices(CreditScheduler::kCriticalShare * operation.end.scheduler.budget_bytes()));
    });
  }
}

}  // namespace
}  // namespace weft::testing
