#include "weft/context_parallel/choose_scheme.h"

#include <gtest/gtest.h>

#include "tests/context_parallel/support/masks.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

AttentionShape ShapeOf(int64_t heads, int64_t kv_heads) {
  return {.batch = 1, .heads = heads, .kv_heads = kv_heads, .head_dim = 64, .value_dim = 64};
}

TEST(ChooseScheme, TakesUlyssesIfThereAreAsManyKeyHeadsAsQueryHeads) {
  for (const int ranks : {2, 4, 8}) {
    ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseScheme(ShapeOf(16, 16), kCausal, {4096}, ranks));
    EXPECT_EQ(choice.scheme, ContextScheme::Ulysses());
    EXPECT_THAT(choice.reason, HasSubstr("ulysses: "));
    EXPECT_THAT(choice.reason, HasSubstr("gather, head-tail: "));
  }
}

TEST(ChooseScheme, GathersIfThereAreFewKeyHeads) {
  ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseScheme(ShapeOf(16, 1), kCausal, {4096}, 2));
  EXPECT_EQ(choice.scheme, (ContextScheme::Gather(LoadBalance::kHeadTail)));
}

TEST(ChooseScheme, BalancesOnlyCausalMasks) {
  const AttentionMask full{.causal = false, .keys_before = {}};
  ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseScheme(ShapeOf(16, 1), full, {4096}, 2));
  EXPECT_EQ(choice.scheme, ContextScheme::Gather());
}

TEST(ChooseScheme, TakesAHybridIfThereAreFewerHeadsThanRanks) {
  ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseScheme(ShapeOf(4, 4), kCausal, {8192}, 16));
  EXPECT_EQ(choice.scheme.kind(16), SchemeKind::kHybrid);
  EXPECT_EQ(choice.scheme.ulysses_degree, 4);
  EXPECT_THAT(choice.reason, HasSubstr("of the mean work"));
}

TEST(ChooseScheme, TakesTheFirstOfEqualSchemes) {
  const ContextScheme ring = ContextScheme::Ring();
  const ContextScheme gather = ContextScheme::Gather();
  const ContextScheme of_all_ranks = {.ulysses_degree = 2};
  const AttentionShape shape = ShapeOf(16, 16);
  const AttentionMask full{.causal = false, .keys_before = {}};
  ASSERT_OK_AND_ASSIGN(const SchemeChoice fewer, ChooseAmong({ring, gather}, shape, full, {4096}, 2));
  EXPECT_EQ(fewer.scheme, gather);
  for (const bool is_first : {true, false}) {
    const ContextScheme first = is_first ? of_all_ranks : ContextScheme::Ulysses();
    const ContextScheme second = is_first ? ContextScheme::Ulysses() : of_all_ranks;
    ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseAmong({first, second}, shape, full, {4096}, 2));
    EXPECT_EQ(choice.scheme, first);
  }
  EXPECT_THAT(ChooseAmong({}, shape, full, {4096}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no scheme to choose from")));
}

TEST(ChooseScheme, RefusesSchemesThatTheRanksOrTheMaskCannotHave) {
  const AttentionMask full{.causal = false, .keys_before = {}};
  const auto refused = [&](const ContextScheme& scheme, const AttentionMask& mask, const char* text) {
    EXPECT_THAT(ChooseAmong({ContextScheme::Ulysses(), scheme}, ShapeOf(16, 16), mask, {4096}, 4),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  for (const int degree : {-1, 0, 3, 8}) {
    refused({.ulysses_degree = degree}, kCausal, "does not divide the 4 ranks");
  }
  refused(ContextScheme::Gather(LoadBalance::kHeadTail), full, "load balance head-tail is for causal masks");
}

TEST(ChooseScheme, IsUlyssesForOneRankAndAnErrorForNone) {
  ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseScheme(ShapeOf(3, 3), kCausal, {7}, 1));
  EXPECT_EQ(choice.scheme.kind(1), SchemeKind::kUlysses);
  EXPECT_THAT(ChooseScheme(ShapeOf(3, 3), kCausal, {7}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least one rank")));
}

TEST(ChooseScheme, GathersForSparseAttention) {
  AttentionShape shape = ShapeOf(16, 16);  // Ulysses would move fewer bytes.
  shape.index_dim = 32;
  const AttentionMask full{.causal = false, .keys_before = {}};
  for (const int ranks : {1, 2, 4, 6}) {
    ASSERT_OK_AND_ASSIGN(const SchemeChoice causal, ChooseScheme(shape, kCausal, {4096}, ranks));
    EXPECT_EQ(causal.scheme, ContextScheme::Gather(LoadBalance::kHeadTail));
    ASSERT_OK_AND_ASSIGN(const SchemeChoice choice, ChooseScheme(shape, full, {4096}, ranks));
    EXPECT_EQ(choice.scheme, ContextScheme::Gather());
  }
  EXPECT_THAT(ChooseAmong({ContextScheme::Ulysses()}, shape, kCausal, {4096}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use gather, with head-tail")));
}

}  // namespace
}  // namespace weft::testing
