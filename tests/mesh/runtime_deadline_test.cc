// Deadlines on a runtime's clock.
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/mesh/runtime.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

TEST(DeadlineOfARuntime, IsLeftForAsLongAsItsClockHasNotMovedByTheTimeout) {
  const SimReport report = RunSimulatedRanks(NodeMap::OneNode(1), {}, [](Bootstrap& bootstrap) {
    Runtime& runtime = bootstrap.runtime();
    constexpr int64_t kTimeoutNs = 1'000'000;
    const int64_t begin_ns = runtime.NowNs();
    const Deadline deadline(runtime, absl::Nanoseconds(kTimeoutNs));
    while (runtime.NowNs() < begin_ns + kTimeoutNs) {
      EXPECT_EQ(deadline.Left(), absl::Nanoseconds(begin_ns + kTimeoutNs - runtime.NowNs()));
      EXPECT_FALSE(deadline.HasPassed());
      runtime.SleepFor(10'000);
    }
    EXPECT_EQ(deadline.Left(), absl::ZeroDuration());
    EXPECT_TRUE(deadline.HasPassed());
    return absl::OkStatus();
  });
  EXPECT_OK(report.status());
}

TEST(DeadlineOfARuntime, ClampsTimeoutsThatItsClockCannotAdd) {
  const SystemRuntime runtime;
  EXPECT_TRUE(Deadline(runtime, -absl::InfiniteDuration()).HasPassed());
  EXPECT_TRUE(Deadline(runtime, absl::ZeroDuration()).HasPassed());
  EXPECT_GT(Deadline(runtime, absl::InfiniteDuration()).Left(), absl::Hours(24 * 364));
}

}  // namespace
}  // namespace weft::testing
