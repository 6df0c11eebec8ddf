#include <gtest/gtest.h>

#include "tests/context_parallel/support/sparse_llama.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

TEST(SparseContextOverMpi, ComputesWhatOneRankDoes) {
  for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
    ASSERT_OK(CheckSparseAgainstOneRank(WorldBootstrap(), {.balance = balance}));
    ASSERT_OK(CheckSparseAgainstOneRank(WorldBootstrap(),
                                        {.documents = {1, 9, 2, 14}, .balance = balance, .top_k = 5}));
  }
}

}  // namespace
}  // namespace weft::testing
