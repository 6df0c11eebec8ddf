// Realistic sizes of rings and Ulysses, against the attention kernel on one rank.
#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/scheme_runner.h"
#include "tests/support/schedule_count.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

// Shorter in the slow builds of sanitizers.
int64_t Tokens(int64_t all) { return ScheduleLimit() ? all / 16 : all; }

void Check(int ranks, const AttentionCase& attention, const std::vector<ContextScheme>& schemes) {
  const SolvedCase solved = SolvedCase::ByKernel(attention);
  RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap));
    for (const ContextScheme& scheme : schemes) WEFT_RETURN_IF_ERROR(runner.Check(scheme, solved).status());
    return absl::OkStatus();
  });
}

TEST(AttentionSizes, RingsTakeAThousandTokensPerRank) {
  std::vector<ContextScheme> rings;
  for (const RingRotation rotation : {RingRotation::kAllGather, RingRotation::kShift}) {
    for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
      rings.push_back(ContextScheme::Ring(rotation, balance));
    }
  }
  const AttentionShape shape{.batch = 8, .heads = 8, .kv_heads = 8, .head_dim = 32, .value_dim = 32};
  Check(2, {.mask = {}, .documents = {Tokens(2 * 1024)}, .shape = shape}, rings);
}

TEST(AttentionSizes, UlyssesTakesAnUnevenSequenceOfThousandsOfTokens) {
  const AttentionShape shape{.batch = 1, .heads = 4, .kv_heads = 4, .head_dim = 16, .value_dim = 16};
  Check(4, {.mask = {}, .documents = {Tokens(8190)}, .shape = shape}, {ContextScheme::Ulysses()});
}

TEST(AttentionSizes, FourRanksShareSevenHeads) {
  const AttentionShape shape{.batch = 2, .heads = 7, .kv_heads = 7, .head_dim = 32, .value_dim = 32};
  Check(4, {.mask = {}, .documents = {Tokens(1024)}, .shape = shape},
        {ContextScheme::Ulysses(), {.ulysses_degree = 2}});
}

}  // namespace
}  // namespace weft::testing
