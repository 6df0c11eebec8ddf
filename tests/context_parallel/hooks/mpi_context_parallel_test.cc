#include <gtest/gtest.h>

#include "tests/context_parallel/support/split_model.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

TEST(ContextParallelOverMpi, ComputesWhatOneRankDoesInEveryScheme) {
  for (const ContextScheme& scheme : SchemesFor(WorldBootstrap().size())) {
    ASSERT_OK(CheckAgainstOneRank(WorldBootstrap(), scheme, {}, /*batch=*/2, /*tokens=*/23));
  }
}

TEST(ContextParallelOverMpi, SeparatesTheCallsOfOneInvocation) {
  ASSERT_OK(CheckAgainstOneRank(WorldBootstrap(), {}, {}, 1, 23, /*calls=*/3));
}

}  // namespace
}  // namespace weft::testing
