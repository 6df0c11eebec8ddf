// The exchanges over MPI processes, with the same test bodies as over threads.
#include <gtest/gtest.h>

#include "tests/context_parallel/support/exchange_sweep.h"
#include "tests/context_parallel/support/sequence_module_sweep.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft::testing {
namespace {

class SequenceExchangeOverMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.timeout = kTestTimeout;
    options.slice_bytes = 256;
    ASSERT_OK_AND_ASSIGN(fixture_, EngineFixture::Make(WorldBootstrap(), options, size_t{16} << 20));
  }
  EngineFixture fixture_;
};

TEST_F(SequenceExchangeOverMpi, MovesASplitFromAnyDimToAnyOther) {
  EXPECT_OK(SweepAllToAllBetweenDims(fixture_));
}
TEST_F(SequenceExchangeOverMpi, IsAdjointOverAllRanks) { EXPECT_OK(SweepAdjoints(fixture_)); }
TEST_F(SequenceExchangeOverMpi, GathersAndReducesOverRecordedSizes) {
  EXPECT_OK(SweepGatherAndReduceScatter(fixture_));
}
TEST_F(SequenceExchangeOverMpi, SplitsAndGathersReplicatedRegions) {
  EXPECT_OK(SweepSplitAndGather(fixture_));
}
TEST_F(SequenceExchangeOverMpi, SplitsAndGathersPacks) { EXPECT_OK(SweepPacks(fixture_)); }
TEST_F(SequenceExchangeOverMpi, SwapsTheFirstRankWithTheLast) { EXPECT_OK(SweepPairs(fixture_)); }
TEST_F(SequenceExchangeOverMpi, SplitsAndGathersInModules) { EXPECT_OK(SweepSequenceModules(fixture_)); }

}  // namespace
}  // namespace weft::testing
