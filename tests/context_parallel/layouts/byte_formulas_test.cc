#include "weft/context_parallel/byte_formulas.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/masks.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

SequenceLayout LayoutFor(const ContextScheme& scheme, const std::vector<int64_t>& documents, int ranks) {
  auto layout = SequenceLayout::Create(documents, scheme.Split(ranks));
  WEFT_CHECK(layout.ok(), "a test's layout");
  return *std::move(layout);
}

// Even splits with `c` tokens per rank, and heads that divide. The header defines c, e, Hq and Hkv.
constexpr int64_t kC = 24;
constexpr AttentionShape kShape{.batch = 3, .heads = 16, .kv_heads = 8, .head_dim = 32, .value_dim = 32};
constexpr int64_t kE = int64_t{3} * 32 * 4;  // All rows of the batch.
constexpr int64_t kHq = 16;
constexpr int64_t kHkv = 8;

// `forward` and `backward`: in f32. In 16 bits, only the `gradients` of keys and values among the bytes of
// backward stay in f32.
void ExpectBytes(const ContextScheme& scheme, const AttentionMask& mask, int ranks, int64_t forward,
                 int64_t backward, int64_t gradients) {
  SCOPED_TRACE(scheme.Describe(ranks));
  const SequenceLayout layout = LayoutFor(scheme, {kC * ranks}, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const int64_t parts = 4 / static_cast<int64_t>(SizeOf(dtype));
      AttentionShape shape = kShape;
      shape.dtype = dtype;
      const ContextCosts costs = CostsOf(scheme, shape, mask, layout, rank);
      EXPECT_EQ(costs.forward_bytes, forward / parts) << "rank " << rank;
      EXPECT_EQ(costs.backward_bytes, (backward - gradients) / parts + gradients) << "rank " << rank;
    }
  }
}

TEST(ContextCosts, FollowTheClosedFormOfUlysses) {
  for (const int p : {1, 2, 4, 8}) {
    const int64_t row = kC / p * (p - 1) * kE * (2 * kHq + 2 * kHkv);
    ExpectBytes(ContextScheme::Ulysses(), kCausal, p, row, row, 0);
  }
}

TEST(ContextCosts, FollowTheClosedFormOfAGather) {
  for (const int p : {1, 2, 3, 4, 8}) {
    const int64_t row = 2 * kC * kHkv * kE * (p - 1);
    for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
      ExpectBytes(ContextScheme::Gather(balance), kCausal, p, row, row, row);
    }
  }
}

TEST(ContextCosts, FollowTheClosedFormOfARing) {
  for (const int p : {1, 2, 3, 4, 8}) {
    const int64_t row = 2 * kC * kHkv * kE * (p - 1);
    for (const RingRotation rotation : {RingRotation::kAllGather, RingRotation::kShift}) {
      const ContextScheme ring = ContextScheme::Ring(rotation);
      ExpectBytes(ring, kFull, p, row, 2 * row, row);
      ContextScheme balanced = ring;
      balanced.balance = LoadBalance::kHeadTail;
      ExpectBytes(balanced, kCausal, p, row, 2 * row, row);
    }
  }
}

TEST(ContextCosts, FollowTheClosedFormOfHybrids) {
  constexpr int kU = 2;
  for (const int v : {2, 3, 4}) {
    const int p = kU * v;
    const int64_t heads = kC / kU * (kU - 1) * kE * (2 * kHq + 2 * kHkv);
    const int64_t outer = 2 * (kU * kC) * (kHkv / kU) * kE * (v - 1);
    const ContextScheme gather{.ulysses_degree = kU};
    const int64_t gradients = outer + kC / kU * (kU - 1) * kE * 2 * kHkv;  // On both levels.
    ExpectBytes(gather, kCausal, p, heads + outer, heads + outer, gradients);
    ContextScheme ring = gather;
    ring.ring_rotation = RingRotation::kShift;
    ExpectBytes(ring, kFull, p, heads + outer, heads + 2 * outer, gradients);
  }
}

TEST(ContextCosts, CountTheHopsOfARingByShift) {
  for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
    const ContextScheme ring = ContextScheme::Ring(RingRotation::kShift, balance);
    for (const int p : {1, 2, 3, 4, 8}) {
      const ContextCosts costs = CostsOf(ring, kShape, kCausal, LayoutFor(ring, {kC * p}, p), p - 1);
      EXPECT_EQ(costs.forward_hops, p - 1);
      EXPECT_EQ(costs.forward_hops + costs.backward_hops, 3 * p - 3);
    }
  }
}

TEST(ContextCosts, SendOnlyToTheNextRankUnderAWindow) {
  const ContextScheme ring = ContextScheme::Ring();
  constexpr int kRanks = 8;
  const SequenceLayout layout = LayoutFor(ring, {kC * kRanks}, kRanks);
  const AttentionMask window{.causal = true, .keys_before = kC};
  const int64_t block = 2 * kC * kHkv * kE;
  for (int rank = 0; rank < kRanks; ++rank) {
    const ContextCosts costs = CostsOf(ring, kShape, window, layout, rank);
    // Keys and values of the previous rank, twice; gradients from the next rank.
    EXPECT_EQ(costs.forward_bytes, rank == 0 ? 0 : block);
    EXPECT_EQ(costs.backward_bytes, (rank == 0 ? 0 : block) + (rank == kRanks - 1 ? 0 : block));
    EXPECT_EQ(costs.forward_hops, 1);
    EXPECT_EQ(costs.backward_hops, 2);
  }
}

// With head-tail, a block has a chunk of each half of the sequence. The window reaches blocks of many ranks.
TEST(ContextCosts, SendMoreThanAGatherUnderAWindowInARingWithHeadTail) {
  constexpr int kRanks = 8;
  const AttentionMask window{.causal = true, .keys_before = kC};
  const auto bytes = [&](const ContextScheme& scheme) {
    const SequenceLayout layout = LayoutFor(scheme, {kC * kRanks}, kRanks);
    int64_t sum = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const ContextCosts costs = CostsOf(scheme, kShape, window, layout, rank);
      sum += costs.forward_bytes + costs.backward_bytes;
    }
    return sum;
  };
  const int64_t gather = bytes(ContextScheme::Gather());
  EXPECT_GT(bytes(ContextScheme::Ring(RingRotation::kShift, LoadBalance::kHeadTail)), gather);
  EXPECT_LT(bytes(ContextScheme::Ring(RingRotation::kShift, LoadBalance::kNone)), gather);
}

TEST(ContextCosts, SendHalfOfACausalRingWithoutBalance) {
  const ContextScheme ring = ContextScheme::Ring();
  for (const int p : {2, 4, 8}) {
    const SequenceLayout layout = LayoutFor(ring, {kC * p}, p);
    int64_t bytes = 0;
    for (int rank = 0; rank < p; ++rank) bytes += CostsOf(ring, kShape, kCausal, layout, rank).forward_bytes;
    EXPECT_EQ(bytes, kC * kHkv * 2 * kE * p * (p - 1) / 2);
  }
}

TEST(ContextCosts, CountReplicatedKeyHeadsOncePerRank) {
  AttentionShape mqa = kShape;
  mqa.kv_heads = 1;
  const ContextScheme ulysses = ContextScheme::Ulysses();
  constexpr int kRanks = 4;
  const int64_t others = kC * (kRanks - 1);
  const ContextCosts costs = CostsOf(ulysses, mqa, kCausal, LayoutFor(ulysses, {kC * kRanks}, kRanks), 1);
  EXPECT_EQ(costs.forward_bytes, others * kE * (kHq / kRanks + 1 + 1 + kHq / kRanks));
}

// The index keys have a size of their own, and are gathered once for all heads.
TEST(ContextCosts, AddTheIndexKeysOfSparseAttention) {
  AttentionShape sparse = kShape;
  sparse.index_dim = 12;
  sparse.dtype = DType::kBF16;
  const ContextScheme gather = ContextScheme::Gather(LoadBalance::kHeadTail);
  const int64_t elements = int64_t{3} * kC * (kHkv * (32 + 32) + 12);  // One rank's, over all rows.
  for (const int p : {1, 2, 3, 4, 8}) {
    const SequenceLayout layout = LayoutFor(gather, {kC * p}, p);
    for (int rank = 0; rank < p; ++rank) {
      const ContextCosts costs = CostsOf(gather, sparse, kCausal, layout, rank);
      EXPECT_EQ(costs.forward_bytes, elements * 2 * (p - 1));
      EXPECT_EQ(costs.backward_bytes, elements * 4 * (p - 1));
    }
  }
}

TEST(WorkImbalance, IsTwoMinusOneOverPForAContiguousCausalSplit) {
  for (const int p : {2, 3, 4, 8}) {
    const ContextScheme gather = ContextScheme::Gather();
    EXPECT_NEAR(WorkImbalance(gather, kShape, kCausal, LayoutFor(gather, {4096 * p}, p)), 2.0 - 1.0 / p,
                1e-3);
    EXPECT_EQ(WorkImbalance(gather, kShape, kFull, LayoutFor(gather, {4096 * p}, p)), 1.0);
  }
}

TEST(WorkImbalance, IsAtMostTwoPercentWithEveryBalance) {
  std::vector<ContextScheme> schemes = {
      ContextScheme::Ulysses(),
      ContextScheme::Gather(LoadBalance::kHeadTail),
      ContextScheme::Gather(LoadBalance::kQueryExchange),
      ContextScheme::Ring(RingRotation::kShift, LoadBalance::kHeadTail),
  };
  AttentionShape shape = kShape;
  shape.heads = 24;  // Divisible by all numbers of ranks.
  for (const int p : {2, 3, 4, 8}) {
    for (const ContextScheme& scheme : schemes) {
      for (const int64_t tokens : {4096 * p, 4096 * p + 5}) {
        EXPECT_LE(WorkImbalance(scheme, shape, kCausal, LayoutFor(scheme, {tokens}, p)), 1.02)
            << scheme.Describe(p) << " with " << tokens << " tokens";
      }
    }
  }
}

TEST(WorkImbalance, FollowsTheHeadsIfRanksDoNotDivideThem) {
  AttentionShape seven = kShape;
  seven.heads = seven.kv_heads = 7;
  const ContextScheme ulysses = ContextScheme::Ulysses();
  EXPECT_DOUBLE_EQ(WorkImbalance(ulysses, seven, kCausal, LayoutFor(ulysses, {64}, 4)), 2 / (7 / 4.0));
}

}  // namespace
}  // namespace weft::testing
