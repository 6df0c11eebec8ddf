// Threads of one rank that sleep while another of its threads completes what they wait for.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;

// A thread waits for a copy of one piece, which takes a quarter of a second of virtual time, and another one
// for the barrier behind it. One of them copies. Returns the time between the ends of their waits.
absl::StatusOr<int64_t> TimeBetweenTheEnds(Bootstrap& bootstrap) {
  constexpr int64_t kBytes = int64_t{128} << 10;
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                        EngineFixture::Make(bootstrap, {}, /*segment_bytes=*/size_t{4} << 20));
  WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kU8, kBytes));
  WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kU8, kBytes));
  Runtime& runtime = bootstrap.runtime();
  const int64_t begin_ns = runtime.NowNs();
  Work work = fixture.engine->AllGather(fixture.lane, input.data(), output.data(), DType::kU8, kBytes);
  Work barrier = fixture.engine->Barrier(fixture.lane);
  int64_t other_ns = 0;
  WEFT_ASSIGN_OR_RETURN(auto other, runtime.Start("a test", [&] {
    EXPECT_OK(barrier.Wait());
    other_ns = runtime.NowNs();
  }));
  WEFT_RETURN_IF_ERROR(work.Wait());
  const int64_t own_ns = runtime.NowNs();
  other.reset();
  EXPECT_GT(std::min(own_ns, other_ns) - begin_ns, 50 * kMillisecondNs);
  return std::abs(own_ns - other_ns);
}

TEST(SleepingThreads, HearOfWhatAnotherThreadOfTheirRankCompletes) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimOptions machine;
    machine.seed = seed;
    machine.memory_speed = 0.0005;
    const SimReport report =
        RunSimulatedRanks(NodeMap::OneNode(1), machine, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const int64_t between_ns, TimeBetweenTheEnds(bootstrap));
          EXPECT_LT(between_ns, kMillisecondNs) << "seed " << seed;
          return absl::OkStatus();
        });
    EXPECT_OK(report.status());
  }
}

}  // namespace
}  // namespace weft::testing
