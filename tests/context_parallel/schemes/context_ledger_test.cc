// The engine's counters equal the byte formulas, and nothing is copied.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/scheme_runner.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

std::vector<SolvedCase> CasesFor(int ranks) {
  std::vector<SolvedCase> cases;
  const auto add = [&](AttentionMask mask, std::vector<int64_t> documents, int64_t heads, int64_t kv_heads,
                       DType dtype = DType::kF32) {
    cases.emplace_back(AttentionCase{
        .mask = mask,
        .documents = std::move(documents),
        .shape =
            {.batch = 2, .heads = heads, .kv_heads = kv_heads, .head_dim = 4, .value_dim = 6, .dtype = dtype},
        .returns_lse = false});
  };
  add({}, {int64_t{8} * ranks}, 4, 4);
  add({}, {int64_t{8} * ranks + 3}, 7, 7);
  add({.causal = false, .keys_before = {}}, {int64_t{6} * ranks}, 4, 1);
  add({.causal = true, .keys_before = 2}, {int64_t{8} * ranks}, 4, 2);
  add({}, {1, 7, 2, 4}, 6, 2);
  add({}, {int64_t{8} * ranks}, 4, 4, DType::kBF16);  // Gradients are sent in f32 only if they are summed.
  add({}, {int64_t{8} * ranks}, 4, 1, DType::kBF16);
  return cases;
}

TEST(ContextLedger, MatchesTheByteFormulasWithoutCopies) {
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<SolvedCase> cases = CasesFor(ranks);
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap));
      for (const SolvedCase& solved : cases) {
        const AttentionCase& attention = solved.attention;
        for (const ContextScheme& scheme : SchemesFor(attention.mask, ranks)) {
          SCOPED_TRACE(absl::StrCat(scheme.Describe(ranks), ": ", attention.Describe()));
          WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                                SequenceLayout::Create(attention.documents, scheme.Split(ranks)));
          const ContextCosts costs =
              CostsOf(scheme, attention.shape, attention.mask, layout, bootstrap.rank());
          WEFT_ASSIGN_OR_RETURN(const SchemeRunner::Outcome outcome, runner.Run(scheme, solved));
          EXPECT_EQ(outcome.forward.context_bytes, costs.forward_bytes);
          EXPECT_EQ(outcome.backward.context_bytes, costs.backward_bytes);
          EXPECT_EQ(outcome.forward.copied_bytes, 0);
          EXPECT_EQ(outcome.backward.copied_bytes, 0);
        }
      }
      return runner.WaitUntilReleased();  // All received tensors are released.
    });
  }
}

TEST(ContextLedger, MatchesTheHopsOfARingByShift) {
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<SolvedCase> cases;
    for (const AttentionMask& mask : {AttentionMask{}, AttentionMask{.causal = false, .keys_before = {}}}) {
      cases.emplace_back(AttentionCase{.mask = mask, .documents = {int64_t{8} * ranks}});
    }
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap));
      for (const SolvedCase& solved : cases) {
        for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
          const ContextScheme ring = ContextScheme::Ring(RingRotation::kShift, balance);
          if (!ring.Validate(ranks, solved.attention.mask).ok()) continue;
          SCOPED_TRACE(absl::StrCat(ring.Describe(ranks), ": ", solved.attention.Describe()));
          const int64_t before = runner.fixture().engine->counters().operations;
          WEFT_RETURN_IF_ERROR(runner.Run(ring, solved).status());
          WEFT_RETURN_IF_ERROR(runner.WaitUntilReleased());
          // P - 1 hops of keys and values in each pass, with two operations each, and P - 1 rounds of
          // gradients, with one operation: it moves gradients to the next rank and to their owners.
          EXPECT_EQ(runner.fixture().engine->counters().operations - before, (2 + 2 + 1) * (ranks - 1));
        }
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
