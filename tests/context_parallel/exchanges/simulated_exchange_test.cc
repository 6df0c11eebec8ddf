// Exchanges on simulated ranks with random schedules: late flags, reads at any moment, released memory full
// of NaN.
#include <gtest/gtest.h>

#include "tests/context_parallel/support/exchange_sweep.h"
#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

EngineOptions SmallSlices() {
  EngineOptions options;
  options.timeout = absl::Seconds(120);
  options.slice_bytes = 64;
  options.piece_bytes = 256;
  options.lane_window_bytes = 256;
  options.yield_window_bytes = 128;
  return options;
}

TEST(SimulatedExchange, GivesTheSameResultsInEverySchedule) {
  const uint64_t seeds = ScheduleCount(20);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 4);
    const NodeMap nodes = NodeMap::RanksPerNode(ranks, 1 + static_cast<int>(seed % 3));
    const SimReport report =
        RunSimulatedRanks(nodes, {.seed = seed}, [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(
              RankEngine rank, RankEngine::Make(bootstrap, SmallSlices(),
                                                {.segment_bytes = size_t{4} << 20, .poison_released = true}));
          WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                                EngineFixture::Make(bootstrap, std::move(rank), LanePurpose::kControl));
          WEFT_RETURN_IF_ERROR(SweepGatherAndReduceScatter(fixture));
          WEFT_RETURN_IF_ERROR(SweepSplitAndGather(fixture));
          WEFT_RETURN_IF_ERROR(SweepPacks(fixture));
          return SweepPairs(fixture);
        });
    EXPECT_OK(report.status()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::testing
