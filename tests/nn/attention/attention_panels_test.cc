// Attention on bf16 panels, against plain loops in fp64. Weights and gradients of scores are rounded to bf16
// between two products, so that results differ by some units of its precision.
#include "src/nn/attention/attention_panels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/nn/products/panel_kernels.h"
#include "tests/nn/attention/attention_case.h"
#include "tests/nn/gradient_check.h"
#include "weft/core/parallel.h"

namespace weft::testing {
namespace {

using ::testing::IsSupersetOf;

constexpr double kTolerance = 0x1p-7;

class AttentionPanels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (panels::FastestPanelUnit() == nullptr) {
      GTEST_SKIP() << "this CPU or compiler has neither AVX512-BF16 nor AMX";
    }
  }
};

AttentionCase CaseOf(int64_t tokens) {
  AttentionCase c;
  c.dtype = DType::kBF16;
  c.q_runs = WholeSequence(tokens);
  c.key_blocks = {WholeSequence(tokens)};
  return c;
}

TEST_F(AttentionPanels, ServeBf16FromOnePanelOfQueriesOn) {
  EXPECT_EQ(AttentionUnit(KernelRun(CaseOf(32)).q), panels::FastestPanelUnit());
  EXPECT_EQ(AttentionUnit(KernelRun(CaseOf(31)).q), nullptr);
  AttentionCase f32 = CaseOf(32);
  f32.dtype = DType::kF32;
  EXPECT_EQ(AttentionUnit(KernelRun(f32).q), nullptr);
}

// A unit that fails if the calling thread has not begun. AMX would end the process there.
thread_local int begun = 0;
std::atomic<int64_t> products = 0;
constexpr panels::PanelUnit kStrictUnit = {
    [] {
      EXPECT_EQ(begun++, 0);
      panels::Avx512Bf16Unit()->begin();
    },
    [] {
      panels::Avx512Bf16Unit()->end();
      EXPECT_EQ(--begun, 0);
    },
    [](const uint32_t* a, const uint32_t* b, int64_t blocks, bool continues, float* sums) {
      EXPECT_EQ(begun, 1);
      ++products;
      panels::Avx512Bf16Unit()->multiply(a, b, blocks, continues, sums);
    }};

// Also: on a CPU with AMX, the results of the other unit.
TEST_F(AttentionPanels, BeginOnEveryThreadThatMultiplies) {
  AttentionCase c = CaseOf(300);
  c.heads = c.kv_heads = 3;
  KernelRun run(c);
  const ExpectedAttention expected(c, run);
  const int threads = ThreadCount();
  SetThreadCount(3);
  AttentionForwardByPanels(kStrictUnit, run.problem, run.q, c.q_runs, run.keys, run.out, run.lse);
  AttentionDelta(run.out, run.dout, run.delta);
  const int64_t products_of_forward = products;
  AttentionBackwardByPanels(kStrictUnit, run.problem, run.q, c.q_runs, run.keys, run.BackwardInputs(),
                            {.dq = run.dq, .keys = run.gradients});
  SetThreadCount(threads);
  EXPECT_GT(products_of_forward, 0);
  EXPECT_GT(products, products_of_forward);
  EXPECT_EQ(begun, 0);
  ExpectOutputs(run, expected.outputs, kTolerance);
  ExpectGradients(c, run, expected.gradients, 2 * kTolerance);
}

// Lengths and positions on both sides of the borders of panels, of tiles and of their parts.
TEST_F(AttentionPanels, AgreeWithPlainLoopsForEveryLengthAndMask) {
  const std::vector<AttentionMask> masks = {{}, {false, std::nullopt}, {true, 7}, {true, 300}};
  for (const AttentionMask& mask : masks) {
    for (const int64_t tokens : {32, 33, 64, 95, 290}) {
      AttentionCase c = CaseOf(tokens);
      c.mask = mask;
      c.kv_heads = 1;
      c.group = 2;
      CheckAttention(c, absl::StrCat(tokens, " tokens, keys before ", mask.keys_before.value_or(0)),
                     kTolerance);
    }
  }
}

TEST_F(AttentionPanels, AgreeWithPlainLoopsAcrossTiles) {
  AttentionCase c = CaseOf(545);
  c.heads = c.kv_heads = 1;
  c.head_dim = c.value_dim = 3;
  CheckAttention(c, "causal", kTolerance);
  c.mask.keys_before = 300;
  CheckAttention(c, "keys before", kTolerance);
}

TEST_F(AttentionPanels, AgreeWithPlainLoopsForEveryDimAndMemory) {
  for (const Memory memory : {Memory::kDense, Memory::kHeadsFirst, Memory::kPartOfWider}) {
    for (const int64_t dim : {1, 31, 32, 33, 80}) {
      AttentionCase c = CaseOf(70);
      c.memory = memory;
      c.batch = 2;
      c.heads = 3;
      c.kv_heads = 3;
      c.head_dim = dim;
      c.value_dim = 81 - dim;
      CheckAttention(c, absl::StrCat("head dim ", dim, ", memory ", static_cast<int>(memory)), kTolerance);
    }
  }
}

TEST_F(AttentionPanels, AgreeWithPlainLoopsForDocumentsBlocksAndHeadsWithinAGroup) {
  AttentionCase c;
  c.dtype = DType::kBF16;
  c.heads = 4;
  c.group = 3;
  c.head_offset = 2;
  c.q_runs = {{0, 100, 130}, {1, 0, 45}, {0, 700, 131}};
  c.key_blocks = {
      {{0, 0, 100}, {0, 831, 70}}, {{1, 0, 45}, {0, 230, 470}}, {{0, 100, 130}, {0, 700, 131}}, {}};
  CheckAttention(c, "several blocks", kTolerance);
  c.kv_heads = 3;
  CheckAttention(c, "with a kv head that no query head reads", kTolerance);
  c.key_blocks = {{{2, 0, 40}}};
  c.q_runs = {{0, 0, 40}};
  CheckAttention(c, "no visible pair", kTolerance);
}

TEST_F(AttentionPanels, AgreeWithPlainLoopsForAMaskOfEachRow) {
  AttentionCase c = CaseOf(260);
  c.batch = 3;
  c.pair_mask = std::make_shared<const PairMask>([](int64_t row, int64_t query, int64_t key) {
    return row == 0 ? (query + key) % 3 == 0 : row == 1 && query / 70 == key / 70;
  });
  CheckAttention(c, "every third key, documents, and no pair", kTolerance);
}

TEST_F(AttentionPanels, AddBetaTimesTheOldValuesOfTheirTargets) {
  for (const int64_t group : {1, 2}) {
    AttentionCase c = CaseOf(75);
    c.kv_heads = 2 / group;
    c.group = group;
    KernelRun run(c);
    ExpectedAttention expected(c, run);
    const auto add = [](std::vector<double>& target, const std::vector<double>& old, double beta) {
      for (size_t i = 0; i < target.size(); ++i) target[i] += beta * old[i];
    };
    add(expected.gradients.dq, ToDoubleValues(run.dq), -2.0);
    add(expected.gradients.dk, Joined(run.gradients, &KeyGradients::dk, 1), 0.5);
    add(expected.gradients.dv, Joined(run.gradients, &KeyGradients::dv, 1), 0.5);
    run.Forward(c.q_runs);
    run.Backward(c.q_runs, -2.0F, 0.5F);
    ExpectGradients(c, run, expected.gradients, 2 * kTolerance);
  }
}

TEST_F(AttentionPanels, GiveTheSameBitsOnSeveralThreads) {
  AttentionCase c = CaseOf(300);
  c.heads = 4;
  c.group = 2;
  const int threads = ThreadCount();
  SetThreadCount(1);
  const std::vector<double> one = ResultsOf(c);
  SetThreadCount(3);
  EXPECT_EQ(ResultsOf(c), one);
  SetThreadCount(threads);
}

// Scores so far apart that the largest of each query takes all weight: weights are 1 or 0, however large the
// scores are.
TEST_F(AttentionPanels, AgreeWithPlainLoopsForScoresFarApart) {
  for (const float scale : {1e3F, 1e6F, 1e11F, 1e30F}) {
    SCOPED_TRACE(scale);
    AttentionCase c = CaseOf(65);
    c.scale = scale;
    KernelRun run(c);
    const ExpectedAttention expected(c, run);
    run.Forward(c.q_runs);
    ExpectNear(ToDoubleValues(run.out), expected.outputs.out, kTolerance, "out");
    run.Backward(c.q_runs);
    ExpectNear(Joined(run.gradients, &KeyGradients::dv, 1), expected.gradients.dv, 2 * kTolerance, "dv");
  }
}

// Weights are rounded to bf16 for products, but not for their sums.
TEST_F(AttentionPanels, AddWeightsUpInFloat) {
  for (const int64_t tokens : {64, 545}) {
    const AttentionCase c = CaseOf(tokens);
    KernelRun run(c);
    const ExpectedAttention expected(c, run);
    run.Forward(c.q_runs);
    ExpectNear(ToDoubleValues(run.lse), expected.outputs.lse, 0x1p-20, "lse");
  }
}

// One key takes all weight of the queries that attend to it, so its place shows in every output.
TEST_F(AttentionPanels, FindAKeyAtTheBordersOfPanelsAndTiles) {
  constexpr int64_t kTokens = 545;
  for (const int64_t key : {0, 31, 32, 63, 64, 255, 256, 511, 512, 544}) {
    AttentionCase c = CaseOf(kTokens);
    c.heads = c.kv_heads = 1;
    KernelRun run(c);
    std::fill_n(run.q.As<BF16>(), run.q.elements(), ToBF16(1.0F));
    std::fill_n(run.keys[0].k.As<BF16>(), run.keys[0].k.elements(), ToBF16(0.0F));
    std::fill_n(run.keys[0].k.As<BF16>() + key * c.head_dim, c.head_dim, ToBF16(100.0F));
    run.Forward(c.q_runs);
    for (int64_t query = key; query < kTokens; ++query) {
      for (int64_t i = 0; i < c.value_dim; ++i) {
        ASSERT_EQ(run.out.As<float>()[query * c.value_dim + i],
                  ToFloat(run.keys[0].v.As<BF16>()[key * c.value_dim + i]))
            << "query " << query << ", key " << key;
      }
    }
  }
}

TEST_F(AttentionPanels, AcceptSizesOfZero) {
  AttentionCase c = CaseOf(40);
  c.head_dim = 0;
  CheckAttention(c, "head dim", kTolerance);
  c = CaseOf(40);
  c.value_dim = 0;
  CheckAttention(c, "value dim", kTolerance);
  c = CaseOf(40);
  c.batch = 0;
  CheckAttention(c, "batch", kTolerance);
  c = CaseOf(40);
  c.heads = 0;
  CheckAttention(c, "heads", kTolerance);
  c = CaseOf(40);
  c.key_blocks = {};
  CheckAttention(c, "key blocks", kTolerance);
}

TEST_F(AttentionPanels, HandOnNanToAllResultsThatDependOnIt) {
  constexpr int64_t kTokens = 64;
  constexpr int64_t kNan = 40;
  AttentionCase c = CaseOf(kTokens);
  c.heads = c.kv_heads = 1;
  const auto rows_with_nan = [](const TensorView& view, int64_t dim) {
    std::vector<int64_t> rows;
    const std::vector<double> values = ToDoubleValues(view);
    for (int64_t row = 0; row < kTokens; ++row) {
      const auto first = values.begin() + row * dim;
      if (std::any_of(first, first + dim, [](double value) { return std::isnan(value); }))
        rows.push_back(row);
    }
    return rows;
  };
  std::vector<int64_t> since(kTokens - kNan);
  std::iota(since.begin(), since.end(), kNan);
  std::vector<int64_t> until(kNan + 1);
  std::iota(until.begin(), until.end(), 0);
  const BF16 nan = ToBF16(std::numeric_limits<float>::quiet_NaN());
  KernelRun query(c);
  query.q.As<BF16>()[kNan * c.head_dim] = nan;
  query.Forward(c.q_runs);
  query.Backward(c.q_runs);
  EXPECT_EQ(rows_with_nan(query.out, c.value_dim), std::vector<int64_t>{kNan});
  EXPECT_EQ(rows_with_nan(query.lse, 1), std::vector<int64_t>{kNan});
  EXPECT_EQ(rows_with_nan(query.dq, c.head_dim), std::vector<int64_t>{kNan});
  // Products of hidden pairs are 0 * NaN, so later keys of the tile may have NaN, too.
  EXPECT_THAT(rows_with_nan(query.gradients[0].dk, c.head_dim), IsSupersetOf(until));
  EXPECT_THAT(rows_with_nan(query.gradients[0].dv, c.value_dim), IsSupersetOf(until));
  KernelRun key(c);
  key.keys[0].k.As<BF16>()[kNan * c.head_dim] = nan;
  key.Forward(c.q_runs);
  EXPECT_EQ(rows_with_nan(key.out, c.value_dim), since);
  KernelRun gradient(c);
  gradient.dout.As<BF16>()[kNan * c.value_dim] = nan;
  gradient.Forward(c.q_runs);
  gradient.Backward(c.q_runs);
  EXPECT_EQ(rows_with_nan(gradient.dq, c.head_dim), std::vector<int64_t>{kNan});
  EXPECT_THAT(rows_with_nan(gradient.gradients[0].dv, c.value_dim), IsSupersetOf(until));
}

}  // namespace
}  // namespace weft::testing
