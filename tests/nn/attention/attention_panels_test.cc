// Attention on bf16 panels, against plain loops in fp64. Weights and gradients of scores are rounded to bf16
// between two products, so that results differ by some units of its precision.
#include "src/nn/attention/attention_panels.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/nn/products/panel_kernels.h"
#include "tests/nn/attention/attention_case.h"
#include "tests/nn/gradient_check.h"
#include "weft/core/parallel.h"

namespace weft::testing {
namespace {

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

std::vector<double> ResultsOf(const AttentionCase& c) {
  KernelRun run(c);
  run.Forward(c.q_runs);
  run.Backward(c.q_runs);
  std::vector<double> all;
  for (const TensorView& view : {run.out, run.lse, run.dq, run.gradients[0].dk, run.gradients[0].dv}) {
    const std::vector<double> more = ToDoubleValues(view);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

TEST_F(AttentionPanels, ServeBf16FromOnePanelOfQueriesOn) {
  EXPECT_TRUE(AttendsByPanels(KernelRun(CaseOf(32)).q));
  EXPECT_FALSE(AttendsByPanels(KernelRun(CaseOf(31)).q));
  AttentionCase f32 = CaseOf(32);
  f32.dtype = DType::kF32;
  EXPECT_FALSE(AttendsByPanels(KernelRun(f32).q));
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
      CheckAttention(c, absl::StrCat(tokens, " tokens, window ", mask.window.value_or(0)), kTolerance);
    }
  }
}

TEST_F(AttentionPanels, AgreeWithPlainLoopsAcrossTiles) {
  AttentionCase c = CaseOf(545);
  c.heads = c.kv_heads = 1;
  c.head_dim = c.value_dim = 3;
  CheckAttention(c, "causal", kTolerance);
  c.mask.window = 300;
  CheckAttention(c, "window", kTolerance);
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

// Scores that differ by more than fp32's exponent holds: the largest takes all weight.
TEST_F(AttentionPanels, AgreeWithPlainLoopsForScoresFarApart) {
  AttentionCase c = CaseOf(65);
  c.scale = 300.0F;
  KernelRun run(c);
  const ExpectedAttention expected(c, run);
  run.Forward(c.q_runs);
  ExpectNear(ToDoubleValues(run.out), expected.outputs.out, kTolerance, "out");
}

TEST_F(AttentionPanels, HandOnNanOfAQueryToItsOutputAlone) {
  constexpr int64_t kNanQuery = 40;
  AttentionCase c = CaseOf(64);
  c.heads = c.kv_heads = 1;
  KernelRun run(c);
  run.q.As<BF16>()[kNanQuery * c.head_dim] = ToBF16(std::numeric_limits<float>::quiet_NaN());
  run.Forward(c.q_runs);
  for (int64_t query = 0; query < 64; ++query) {
    const float* out = run.out.As<float>() + query * c.value_dim;
    for (int64_t i = 0; i < c.value_dim; ++i) EXPECT_EQ(std::isnan(out[i]), query == kNanQuery) << query;
  }
}

}  // namespace
}  // namespace weft::testing
