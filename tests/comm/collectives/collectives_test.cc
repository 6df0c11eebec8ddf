// All collectives over threads, on every kind of node map.
#include <gtest/gtest.h>

#include "tests/comm/collectives/collective_sweep.h"
#include "tests/comm/collectives/ranges_sweep.h"
#include "tests/support/schedule_count.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

// All dtypes; in the slow builds of sanitizers one of each size that the kernels treat alike.
SweepOptions AllDTypes() {
  SweepOptions swept;
  if (ScheduleLimit()) swept.dtypes = {DType::kF32, DType::kBF16, DType::kF64, DType::kI8};
  return swept;
}

class Collectives : public ::testing::TestWithParam<int> {
 protected:
  // Small slices and windows, so that a few elements take many slices.
  void Run(absl::Status (*sweep)(EngineFixture&, const SweepOptions&),
           const SweepOptions& swept = AllDTypes(), int64_t slice_bytes = 512) {
    RunSweep([&](EngineFixture& fixture) { return sweep(fixture, swept); }, slice_bytes);
  }
  template <typename Sweep>
  void RunSweep(const Sweep& sweep, int64_t slice_bytes = 512) {
    EngineOptions options;
    options.timeout = kTestTimeout;
    options.slice_bytes = slice_bytes;
    options.piece_bytes = 2 * slice_bytes;
    options.lane_window_bytes = 4 * slice_bytes;
    options.yield_window_bytes = 2 * slice_bytes;
    options.relaying = relaying_;
    for (const NodeMap& nodes : maps_) {
      RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
        return sweep(fixture);
      });
    }
  }
  // Slices have several codec blocks, and parts have several slices.
  void RunCompressed(absl::Status (*sweep)(EngineFixture&, const SweepOptions&)) {
    SweepOptions swept{.counts = {0, 2200}, .dtypes = {DType::kF32, DType::kBF16, DType::kF16}};
    swept.op.wire_compression = WireCompression::kLossless;
    Run(sweep, swept, /*slice_bytes=*/3000);
  }

  std::vector<NodeMap> maps_ = NodeMapsOf(GetParam());
  Relaying relaying_ = Relaying::kWhereItPays;
};

class NumaCollectives : public Collectives {
 protected:
  NumaCollectives() { maps_ = NumaMapsOf(GetParam()); }
};

TEST_P(NumaCollectives, AllGatherSharedFillsOneBlockPerDomain) {
  Run(SweepAllGatherShared, {.counts = {0, 1, 700}, .dtypes = {DType::kF32, DType::kBF16, DType::kI8}});
}
TEST_P(NumaCollectives, AllGatherSharedFillsOneBlockPerDomainWithPartsThatTravelCompressed) {
  RunCompressed(SweepAllGatherShared);
}
TEST_P(NumaCollectives, ReduceScatterReducesEachPartAtItsOwner) {
  Run(SweepReduceScatter,
      {.counts = {0, 1, 700}, .dtypes = {DType::kF32, DType::kBF16, DType::kF64, DType::kI8}});
}
TEST_P(NumaCollectives, ReduceScatterReducesRangesInTheCanonicalOrder) {
  RunSweep(
      [](EngineFixture& fixture) { return SweepReduceScatterOfRanges(fixture, WireCompression::kNone); });
}
TEST_P(NumaCollectives, GathersBringRangesToEveryRank) {
  RunSweep([](EngineFixture& fixture) { return SweepGathersOfRanges(fixture, WireCompression::kNone); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NumaCollectives, ::testing::Values(3, 4, 7));

TEST_P(Collectives, AllGatherBringsEveryPartToEveryRank) { Run(SweepAllGather); }
TEST_P(Collectives, AllGatherSharedFillsOneBlockPerNode) { Run(SweepAllGatherShared); }
TEST_P(Collectives, ReduceScatterReducesEachPartAtItsOwner) { Run(SweepReduceScatter); }
TEST_P(Collectives, RelayedGathersAndReductionsGiveTheSame) {
  relaying_ = Relaying::kAlways;
  const SweepOptions swept{.counts = {0, 1, 700}, .dtypes = {DType::kF32, DType::kBF16, DType::kI8}};
  for (const auto sweep : {SweepAllGather, SweepReduceScatter, SweepAllReduce}) Run(sweep, swept);
}
TEST_P(Collectives, AllReduceGivesEveryRankTheReduction) { Run(SweepAllReduce); }
TEST_P(Collectives, AllGatherBringsPartsThatTravelCompressed) { RunCompressed(SweepAllGather); }
TEST_P(Collectives, AllGatherSharedFillsOneBlockWithPartsThatTravelCompressed) {
  RunCompressed(SweepAllGatherShared);
}
TEST_P(Collectives, ReduceScatterReducesPartialsThatTravelCompressed) { RunCompressed(SweepReduceScatter); }
TEST_P(Collectives, AllReduceReducesPartialsThatTravelCompressed) { RunCompressed(SweepAllReduce); }
TEST_P(Collectives, GathersBringRangesToEveryRank) {
  RunSweep([](EngineFixture& fixture) { return SweepGathersOfRanges(fixture, WireCompression::kNone); });
}
TEST_P(Collectives, GathersBringRangesThatTravelCompressed) {
  RunSweep([](EngineFixture& fixture) { return SweepGathersOfRanges(fixture, WireCompression::kLossless); },
           /*slice_bytes=*/3000);
}
TEST_P(Collectives, ReduceScatterReducesRangesInTheCanonicalOrder) {
  RunSweep(
      [](EngineFixture& fixture) { return SweepReduceScatterOfRanges(fixture, WireCompression::kNone); });
}
TEST_P(Collectives, ReduceScatterReducesRangesWhosePartialsTravelCompressed) {
  RunSweep(
      [](EngineFixture& fixture) { return SweepReduceScatterOfRanges(fixture, WireCompression::kLossless); },
      /*slice_bytes=*/3000);
}
TEST_P(Collectives, GathersAndReductionsOfManyPiecesGoThroughStagingRings) {
  SweepOptions many_pieces{.counts = {1009}, .dtypes = {DType::kF32, DType::kBF16}};
  if (ScheduleLimit()) many_pieces = {.counts = {257}, .dtypes = {DType::kF32}};
  for (const auto sweep : {SweepAllGather, SweepReduceScatter, SweepAllReduce, SweepBroadcast})
    Run(sweep, many_pieces, /*slice_bytes=*/64);
}
TEST_P(Collectives, AllToAllExchangesUnevenAndEmptyParts) { Run(SweepAllToAll); }
TEST_P(Collectives, AllToAllExchangesStridedTensorsOfAnyShape) { Run(SweepStridedAllToAll); }
TEST_P(Collectives, SendReceiveShiftsAroundTheRingAndBetweenPairs) { Run(SweepSendReceive); }
TEST_P(Collectives, BroadcastCopiesTheRootsBufferAndBarrierSynchronizes) { Run(SweepBroadcast); }

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace weft::testing
