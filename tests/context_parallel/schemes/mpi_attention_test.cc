// The schemes over MPI processes, against attention by plain loops.
#include <gtest/gtest.h>

#include "tests/context_parallel/support/scheme_runner.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

TEST(AttentionParallelOverMpi, IsAttentionOfTheWholeSequence) {
  const int ranks = WorldBootstrap().size();
  ASSERT_OK_AND_ASSIGN(SchemeRunner runner, SchemeRunner::Make(WorldBootstrap()));
  // A sample, since threads run all cases: every mask, every pack, and every number of heads.
  for (const SolvedCase& solved : SweepFor(ranks, /*step=*/5)) {
    for (const ContextScheme& scheme : SchemesFor(solved.attention.mask, ranks)) {
      ASSERT_OK_AND_ASSIGN(const SchemeRunner::Outcome outcome, runner.Check(scheme, solved));
      EXPECT_EQ(outcome.forward.copied_bytes + outcome.backward.copied_bytes, 0);
    }
  }
}

}  // namespace
}  // namespace weft::testing
