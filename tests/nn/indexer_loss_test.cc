// Tests of the indexer's loss against plain loops in double and their central differences.
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/nn/attention/attention_case.h"
#include "tests/nn/sparse_case.h"
#include "tests/support/attention_oracle.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft::testing {
namespace {

SparseCase Case(const AttentionMask& mask, TokenRuns q_runs, std::vector<TokenRuns> key_blocks) {
  SparseCase c;
  c.mask = mask;
  c.q_runs = std::move(q_runs);
  c.key_blocks = std::move(key_blocks);
  return c;
}

std::vector<SparseCase> Cases() {
  std::vector<SparseCase> cases;
  for (const AttentionMask& mask :
       {AttentionMask{}, AttentionMask{false, std::nullopt}, AttentionMask{true, 5}}) {
    cases.push_back(Case(mask, WholeSequence(19), {WholeSequence(19)}));
    cases.push_back(
        Case(mask, {{0, 5, 5}, {1, 2, 3}, {0, 20, 3}}, {{{0, 18, 5}, {1, 0, 6}}, {}, {{0, 0, 15}}}));
  }
  cases.push_back(Case({}, WholeSequence(150), {WholeSequence(150)}));
  cases.back().index_dim = 2;
  cases.back().index_heads = 1;
  cases.push_back(Case({}, WholeSequence(8), {WholeSequence(8)}));
  cases.back().batch = 5;
  cases.back().index_dim = 33;
  cases.back().index_heads = 5;
  cases.back().sliced = true;
  return cases;
}

// Compares the loss over `numbers` and its gradients, which `run` has computed with `factor`.
void ExpectLoss(const SparseRun& run, const SelectedNumbers& numbers, double loss, double factor,
                double tolerance) {
  const SparseOracle oracle(run.c);
  const SparsePoint point = run.Point();
  const std::vector<Doubles> targets = oracle.Targets(point, numbers);
  EXPECT_NEAR(loss, oracle.Loss(point, numbers, targets), tolerance * std::max(1.0, std::abs(loss)));
  const auto objective = [&](Doubles SparsePoint::*which) {
    return [&, which](const Doubles& moved) {
      SparsePoint at = point;
      at.*which = moved;
      return factor * oracle.Loss(at, numbers, targets);
    };
  };
  ExpectDifferences(objective(&SparsePoint::index_q), point.index_q, ToDoubleValues(run.index_dq),
                    AllDifferences(tolerance), "dq");
  ExpectDifferences(objective(&SparsePoint::weights), point.weights, ToDoubleValues(run.index_dweights),
                    AllDifferences(tolerance), "dweights");
  ExpectDifferences(objective(&SparsePoint::index_k), point.index_k, JoinedKeys(run.index_dk, run.c.batch),
                    AllDifferences(tolerance), "dk");
}

TEST(SelectedIndexerLoss, HasGradientsThatMatchFiniteDifferences) {
  for (SparseCase& c : Cases()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      c.dtype = dtype;
      SparseRun run(c);
      run.Select();
      run.Forward();
      run.Backward();
      const double loss = run.SelectedLoss(0.5F);
      ExpectLoss(run, run.Numbers(), loss, 0.5, 1e-4);
    }
  }
}

TEST(DenseIndexerLoss, HasGradientsThatMatchFiniteDifferences) {
  for (SparseCase& c : Cases()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      c.dtype = dtype;
      SparseRun run(c);
      run.DenseForward();
      const double loss = run.DenseLoss(0.5F);
      ExpectLoss(run, SparseOracle(c).VisibleKeys(), loss, 0.5, dtype == DType::kF32 ? 1e-4 : 0x1p-4);
    }
  }
}

TEST(DenseIndexerLoss, EqualsTheSelectedLossIfAllKeysAreSelected) {
  // Several row blocks and key tiles, and several parts.
  SparseCase c = Case({}, {{0, 0, 300}, {1, 0, 100}}, {{{0, 0, 300}}, {{1, 0, 100}}});
  c.top_k = 400;
  SparseRun selected(c);
  selected.Select();
  selected.Forward();
  selected.Backward();
  const double expected = selected.SelectedLoss(1.0F);
  SparseRun dense(c);
  dense.DenseForward();
  EXPECT_NEAR(dense.DenseLoss(1.0F), expected, 1e-5 * expected);
  ExpectNear(ToDoubleValues(dense.index_dq), ToDoubleValues(selected.index_dq), 1e-5, "dq");
  ExpectNear(ToDoubleValues(dense.index_dweights), ToDoubleValues(selected.index_dweights), 1e-5, "dweights");
  ExpectNear(JoinedKeys(dense.index_dk, 1), JoinedKeys(selected.index_dk, 1), 1e-5, "dk");
}

// The attention has one head, whose scores are those of the indexer: the target is the softmax of the index
// scores.
TEST(IndexerLoss, IsZeroWithoutGradientsIfTheScoresGiveTheTarget) {
  SparseCase c = Case({}, WholeSequence(21), {WholeSequence(21)});
  c.heads = c.kv_heads = c.group = c.index_heads = 1;
  c.head_dim = c.index_dim = 4;
  c.scale = 1.0F;
  SparseRun run(c);
  const auto copy_positive = [](const TensorView& from, const TensorView& to) {
    for (int64_t i = 0; i < from.elements(); ++i) {
      from.As<float>()[i] = std::abs(from.As<float>()[i]);
      to.As<float>()[i] = from.As<float>()[i];
    }
  };
  copy_positive(run.q, run.index.q);
  copy_positive(run.keys[0].k, run.index_keys[0]);
  for (int64_t i = 0; i < 21; ++i) run.index.weights.As<float>()[i] = 1.0F;
  const auto expect_zero = [&](double loss) {
    EXPECT_NEAR(loss, 0.0, 1e-5);
    for (const TensorView& view : {run.index_dq, run.index_dweights, run.index_dk[0]}) {
      for (const double value : ToDoubleValues(view)) EXPECT_NEAR(value, 0.0, 1e-5);
    }
  };
  run.Select();
  run.Forward();
  run.Backward();
  expect_zero(run.SelectedLoss(1.0F));
  run.DenseForward();
  expect_zero(run.DenseLoss(1.0F));
}

TEST(IndexerLoss, HasNoTermForAQueryWithoutKeys) {
  for (const std::vector<TokenRuns>& keys : {std::vector<TokenRuns>{}, {{{0, 8, 9}}}}) {
    const SparseCase c = Case({}, {{0, 3, 5}}, keys);
    SparseRun none(c);
    none.Select();
    none.Forward();
    none.Backward();
    EXPECT_EQ(none.SelectedLoss(1.0F), 0.0);
    EXPECT_EQ(none.DenseLoss(1.0F), 0.0);
    for (const double value : ToDoubleValues(none.index_dq)) EXPECT_EQ(value, 0.0);
    for (const double value : ToDoubleValues(none.index_dweights)) EXPECT_EQ(value, 0.0);
    for (const double value : JoinedKeys(none.index_dk, 1)) EXPECT_EQ(value, 0.0);
  }
}

}  // namespace
}  // namespace weft::testing
