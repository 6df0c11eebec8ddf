// Traces of an engine: they agree with its counters.
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kPart = 1000;  // Elements.

EngineOptions TracedSlices() {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 512;
  return options;
}

// Gathers, and waits until the operation is *released*.
absl::Status Gather(EngineFixture& fixture, const std::string& label) {
  const int64_t elements = kPart * fixture.engine->bootstrap().size();
  WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kF32, kPart));
  WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kF32, elements));
  OpOptions options;
  options.label = label;
  options.priority = Priority::kPrefetch;
  Work work = fixture.engine->AllGather(fixture.lane, input.data(), output.data(), DType::kF32, elements, {},
                                        options);
  return work.WaitReleased();
}

TEST(EngineTraceTest, HasTheOperationsOfItsIntervalInTheOrderOfTheirTimes) {
  RunRanksOnEveryNodeMap(3, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, TracedSlices()));
    WEFT_RETURN_IF_ERROR(Gather(fixture, "before"));
    fixture.engine->StartTrace();
    WEFT_RETURN_IF_ERROR(Gather(fixture, "first"));
    WEFT_RETURN_IF_ERROR(Gather(fixture, "second"));
    const EngineTrace trace = fixture.engine->StopTrace();
    WEFT_RETURN_IF_ERROR(Gather(fixture, "after"));

    EXPECT_THAT(trace.operations, SizeIs(2));
    if (trace.operations.size() != 2) return absl::OkStatus();
    EXPECT_EQ(trace.operations[0].label, "first");
    EXPECT_EQ(trace.operations[1].label, "second");
    for (const TracedOperation& operation : trace.operations) {
      EXPECT_EQ(operation.kind, OpKind::kAllGather);
      EXPECT_EQ(operation.dtype, DType::kF32);
      EXPECT_EQ(operation.priority, Priority::kPrefetch);
      EXPECT_EQ(operation.bytes, 2 * kPart * int64_t{sizeof(float)});
      EXPECT_LE(operation.submitted_ns, operation.started_ns);
      EXPECT_LE(operation.started_ns, operation.ready_ns);
      EXPECT_LE(operation.ready_ns, operation.released_ns);
    }
    EXPECT_LE(trace.operations[0].released_ns, trace.operations[1].submitted_ns);
    EXPECT_THAT(fixture.engine->StopTrace().operations, IsEmpty());
    return absl::OkStatus();
  });
}

TEST(EngineTraceTest, HasTheSlicesThatTheCountersCount) {
  RunRanksOnEveryNodeMap(3, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, TracedSlices()));
    const int64_t before = fixture.engine->counters().wire_bytes;
    fixture.engine->StartTrace();
    WEFT_RETURN_IF_ERROR(Gather(fixture, "gather"));
    const EngineTrace trace = fixture.engine->StopTrace();
    int64_t sent = 0;
    std::set<std::tuple<bool, int, int64_t>> slices;
    for (const TracedSlice& slice : trace.slices) {
      if (slice.sent) sent += slice.bytes;
      EXPECT_FALSE(bootstrap.node_map().SameNode(slice.peer, bootstrap.rank()));
      EXPECT_LE(slice.bytes, 512);
      EXPECT_EQ(slice.slices, 1);
      EXPECT_LE(slice.begin_ns, slice.end_ns);
      EXPECT_EQ(slice.lane, trace.operations.front().lane);
      EXPECT_EQ(slice.sequence, trace.operations.front().sequence);
      EXPECT_TRUE(slices.insert({slice.sent, slice.peer, slice.number}).second) << "a slice twice";
    }
    EXPECT_EQ(sent, fixture.engine->counters().wire_bytes - before);
    EXPECT_EQ(trace.slices.empty(), bootstrap.node_map().node_count() == 1);
    return absl::OkStatus();
  });
}

TEST(EngineTraceTest, HasWaitsThatAddUpToTheCounter) {
  RunRanksOnEveryNodeMap(2, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, TracedSlices()));
    WEFT_RETURN_IF_ERROR(Gather(fixture, "before"));
    const int64_t before = fixture.engine->counters().wait_ns;
    fixture.engine->StartTrace();
    for (int i = 0; i < 5; ++i) WEFT_RETURN_IF_ERROR(Gather(fixture, "layers.3"));
    const EngineTrace trace = fixture.engine->StopTrace();
    int64_t waited = 0;
    for (const TracedWait& wait : trace.waits) {
      EXPECT_EQ(wait.operation, "all_gather 'layers.3' on world/all_gather");
      waited += wait.end_ns - wait.begin_ns;
    }
    EXPECT_EQ(waited, fixture.engine->counters().wait_ns - before);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
