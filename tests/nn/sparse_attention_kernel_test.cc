#include "weft/nn/sparse/sparse_attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/nn/attention/attention_case.h"
#include "tests/nn/sparse_case.h"
#include "tests/support/attention_oracle.h"
#include "weft/core/parallel.h"

namespace weft::testing {
namespace {

struct NamedCase {
  std::string name;
  SparseCase sparse_case;
};

SparseCase Case(const AttentionMask& mask, TokenRuns q_runs, std::vector<TokenRuns> key_blocks) {
  SparseCase c;
  c.mask = mask;
  c.q_runs = std::move(q_runs);
  c.key_blocks = std::move(key_blocks);
  return c;
}

// Every mask with every layout of tokens.
std::vector<NamedCase> Cases() {
  const std::vector<std::pair<const char*, AttentionMask>> masks = {
      {"full", {false, std::nullopt}}, {"causal", {true, std::nullopt}}, {"5 keys before", {true, 5}}};
  const TokenRuns documents = {{7, 0, 3}, {8, 0, 11}, {9, 0, 1}, {10, 0, 9}};
  std::vector<NamedCase> cases;
  for (const auto& [name, mask] : masks) {
    const auto add = [&, mask_name = name, mask = mask](const char* layout, const TokenRuns& q_runs,
                                                        const std::vector<TokenRuns>& key_blocks) {
      cases.push_back({absl::StrCat(mask_name, ", ", layout), Case(mask, q_runs, key_blocks)});
    };
    add("one sequence", WholeSequence(37), {WholeSequence(37)});
    add("a middle part", {{0, 20, 13}}, {{{0, 0, 20}}, {{0, 20, 13}}, {{0, 33, 7}}});
    add("head and tail", {{0, 5, 5}, {0, 30, 6}}, {{{0, 0, 5}, {0, 36, 4}, {0, 5, 5}, {0, 30, 6}}});
    add("documents", documents, {documents});
    add("parts of documents", {{1, 4, 3}, {2, 0, 0}, {3, 9, 5}, {4, 0, 2}},
        {{{1, 0, 7}, {3, 0, 9}}, {{3, 9, 9}, {5, 0, 4}}, {}});
    add("keys in another order", {{0, 10, 10}}, {{{0, 15, 5}, {0, 0, 10}, {0, 10, 5}}});
    add("keys after all queries", {{0, 3, 5}}, {{{0, 8, 9}}});
    add("no queries", {}, {WholeSequence(5)});
    add("no keys", WholeSequence(5), {});
    add("an empty block", WholeSequence(5), {{}, WholeSequence(5), {}});
  }
  return cases;
}

TEST(SelectKeys, AgreesWithASortForEveryMaskAndLayoutOfTokens) {
  for (NamedCase& named : Cases()) {
    for (const bool exact : {false, true}) {
      for (const int64_t top_k : {1, 4, 20, 1000}) {
        SCOPED_TRACE(absl::StrCat(named.name, exact ? ", with ties" : "", ", top ", top_k));
        SparseCase& c = named.sparse_case;
        c.exact_scores = exact;
        c.top_k = top_k;
        c.batch = 2;
        c.sliced = !exact;
        SparseRun run(c);
        run.Select();
        EXPECT_EQ(run.selection.width(), std::min(top_k, c.keys()));
        ASSERT_EQ(run.Numbers(), SparseOracle(c).Select(run.Point()));
      }
    }
  }
}

TEST(SelectKeys, ReturnsTheScoresOfTheSelectedKeys) {
  SparseCase c = Case({}, WholeSequence(70), {WholeSequence(70)});
  c.batch = 2;
  c.index_heads = 6;
  c.index_dim = 7;
  SparseRun run(c);
  run.Select();
  const SparseOracle oracle(c);
  const SelectedNumbers numbers = run.Numbers();
  for (size_t row = 0; row < numbers.size(); ++row) {
    for (size_t j = 0; j < numbers[row].size(); ++j) {
      const auto query = static_cast<int64_t>(row);
      ASSERT_NEAR(run.selection.scores.As<float>()[row * 4 + j],
                  oracle.IndexScore(run.Point(), query / 70, query % 70, numbers[row][j]), 1e-5);
    }
  }
}

// More keys than a keeper holds, in tiles.
TEST(SelectKeys, AgreesWithASortForManyKeys) {
  for (const bool exact : {false, true}) {
    for (const int64_t top_k : {1, 33, 300}) {
      SparseCase c = Case({}, {{0, 0, 3}, {0, 1500, 70}}, {{{0, 700, 900}, {1, 0, 5}}, {{0, 0, 700}}});
      c.exact_scores = exact;
      c.top_k = top_k;
      SparseRun run(c);
      run.Select();
      ASSERT_EQ(run.Numbers(), SparseOracle(c).Select(run.Point())) << top_k;
    }
  }
}

// The scores of rising keys drop all earlier candidates again and again.
TEST(SelectKeys, KeepsTheLastKeysIfScoresRise) {
  SparseCase c = Case({}, {{0, 4000, 2}}, {WholeSequence(4001)});
  c.index_heads = c.index_dim = 1;
  c.top_k = 100;
  SparseRun run(c);
  for (int64_t key = 0; key < 4001; ++key) run.index_keys[0].As<float>()[key] = static_cast<float>(key + 1);
  for (int64_t query = 0; query < 2; ++query) {
    run.index.q.As<float>()[query] = 1.0F;
    run.index.weights.As<float>()[query] = query == 0 ? 1.0F : -1.0F;
  }
  run.Select();
  for (int64_t j = 0; j < 100; ++j) {
    EXPECT_EQ(run.selection.keys.As<int32_t>()[j], 3901 + j);
    EXPECT_EQ(run.selection.keys.As<int32_t>()[100 + j], j);
  }
}

// The bits of a score depend on its query and its key alone.
TEST(SelectKeys, SelectsTheSameKeysWhateverTheDivisionIntoBlocks) {
  constexpr int64_t kKeys = 700;
  SparseCase whole = Case({}, {{0, 600, 90}}, {WholeSequence(kKeys)});
  whole.top_k = 50;
  SparseRun expected(whole);
  expected.Select();
  SparseCase split = whole;
  split.key_blocks = {{{0, 333, 367}}, {}, {{0, 0, 333}}};
  SparseRun run(split);
  run.index_keys = {expected.index_keys[0].Slice(1, 333, 367), expected.index_keys[0].Slice(1, 0, 0),
                    expected.index_keys[0].Slice(1, 0, 333)};
  run.Select();
  for (int64_t row = 0; row < 90; ++row) {
    std::vector<std::pair<int32_t, float>> a, b;
    for (int64_t j = row * 50; j < (row + 1) * 50; ++j) {
      const int32_t number = run.selection.keys.As<int32_t>()[j];
      a.emplace_back(expected.selection.keys.As<int32_t>()[j], expected.selection.scores.As<float>()[j]);
      b.emplace_back(number < 367 ? number + 333 : number - 367, run.selection.scores.As<float>()[j]);
    }
    std::sort(b.begin(), b.end());
    ASSERT_EQ(a, b);
  }
}

TEST(SparseAttentionKernel, AgreesWithPlainLoopsForEveryMaskAndLayoutOfTokens) {
  for (const NamedCase& named : Cases()) {
    SCOPED_TRACE(named.name);
    SparseRun run(named.sparse_case);
    run.Select();
    run.Forward();
    const SparseOracle::Outputs expected = SparseOracle(run.c).Attend(run.Point(), run.Numbers());
    ExpectNear(ToDoubleValues(run.out), expected.out, 1e-5, "out");
    ExpectNear(ToDoubleValues(run.lse), expected.lse, 1e-5, "lse");
  }
}

// Gradients with the selection held fixed.
void CheckSparseGradients(const SparseCase& c, double tolerance) {
  SparseRun run(c);
  run.Select();
  run.Forward();
  run.Backward();
  const SparseOracle oracle(c);
  const SparsePoint point = run.Point();
  const SelectedNumbers numbers = run.Numbers();
  const Doubles dout = ToDoubleValues(run.dout);
  const auto objective = [&](Doubles SparsePoint::*which) {
    return [&, which](const Doubles& moved) {
      SparsePoint at = point;
      at.*which = moved;
      const Doubles out = oracle.Attend(at, numbers).out;
      double sum = 0.0;
      for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
      return sum;
    };
  };
  std::vector<TensorView> dk, dv;
  for (const KeyGradients& gradient : run.gradients) {
    dk.push_back(gradient.dk);
    dv.push_back(gradient.dv);
  }
  ExpectDifferences(objective(&SparsePoint::q), point.q, ToDoubleValues(run.dq), AllDifferences(tolerance),
                    "dq");
  ExpectDifferences(objective(&SparsePoint::k), point.k, JoinedKeys(dk, c.batch), AllDifferences(tolerance),
                    "dk");
  ExpectDifferences(objective(&SparsePoint::v), point.v, JoinedKeys(dv, c.batch), AllDifferences(tolerance),
                    "dv");
}

TEST(SparseAttentionKernel, HasGradientsThatMatchFiniteDifferences) {
  for (NamedCase& named : Cases()) {
    SCOPED_TRACE(named.name);
    CheckSparseGradients(named.sparse_case, 2e-5);
  }
  SparseCase c = Case({}, WholeSequence(9), {WholeSequence(9)});
  c.batch = 2;
  c.sliced = true;
  for (const auto& [heads, kv_heads] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {3, 1}, {10, 2}, {8, 1}, {7, 1}}) {
    SCOPED_TRACE(absl::StrCat(heads, " heads, ", kv_heads, " kv heads"));
    c.heads = heads;
    c.kv_heads = kv_heads;
    c.group = heads / kv_heads;
    c.head_dim = 17;
    c.value_dim = 80;
    CheckSparseGradients(c, 2e-5);
  }
}

TEST(SparseAttentionKernel, AcceptsHeadsFromTheMiddleOfAGroup) {
  SparseCase c = Case({}, WholeSequence(9), {WholeSequence(9)});
  c.heads = 4;
  c.group = 3;
  c.head_offset = 2;
  c.kv_heads = 3;  // No query head reads the last one.
  CheckSparseGradients(c, 2e-5);
  c.heads = 0;
  SparseRun run(c);
  run.Select();
  run.Forward();
  run.Backward();
  for (const double value : ToDoubleValues(run.gradients[0].dk)) EXPECT_EQ(value, 0.0);
}

TEST(SparseAttentionKernel, GivesTheOutputAndGradientsOfDenseAttentionIfAllKeysAreSelected) {
  for (NamedCase& named : Cases()) {
    SCOPED_TRACE(named.name);
    SparseCase& c = named.sparse_case;
    c.top_k = 1000;
    SparseRun sparse(c);
    sparse.Select();
    sparse.Forward();
    sparse.Backward();
    SparseRun dense(c);
    dense.DenseForward();
    AttentionDelta(dense.out, dense.dout, dense.delta);
    AttentionBackward(dense.problem, dense.q, c.q_runs, dense.keys,
                      {.lse = dense.lse, .delta = dense.delta, .dout = dense.dout},
                      {.dq = dense.dq, .keys = dense.gradients});
    ExpectNear(ToDoubleValues(sparse.out), ToDoubleValues(dense.out), 1e-5, "out");
    ExpectNear(ToDoubleValues(sparse.lse), ToDoubleValues(dense.lse), 1e-5, "lse");
    ExpectNear(ToDoubleValues(sparse.dq), ToDoubleValues(dense.dq), 1e-5, "dq");
    ExpectNear(Joined(sparse.gradients, &KeyGradients::dk, c.batch),
               Joined(dense.gradients, &KeyGradients::dk, c.batch), 1e-5, "dk");
    ExpectNear(Joined(sparse.gradients, &KeyGradients::dv, c.batch),
               Joined(dense.gradients, &KeyGradients::dv, c.batch), 1e-5, "dv");
  }
}

TEST(SparseAttentionKernel, WritesATargetThatSumsToOne) {
  SparseCase c = Case({}, {{0, 0, 7}, {1, 5, 70}}, {{{0, 0, 7}}, {{1, 0, 75}}});
  c.batch = 2;
  SparseRun run(c);
  run.Select();
  run.Forward();
  run.Backward();
  const std::vector<Doubles> expected = SparseOracle(c).Targets(run.Point(), run.Numbers());
  for (size_t row = 0; row < expected.size(); ++row) {
    double sum = 0.0;
    for (size_t j = 0; j < 4; ++j) {
      const auto value = static_cast<double>(run.target.As<float>()[row * 4 + j]);
      EXPECT_NEAR(value, j < expected[row].size() ? expected[row][j] : 0.0, 1e-6);
      sum += value;
    }
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
}

TEST(SparseAttentionKernel, ComputesWithBf16InputsAsWithTheirValues) {
  SparseCase c = Case({}, WholeSequence(40), {WholeSequence(40)});
  c.dtype = DType::kBF16;
  CheckSparseGradients(c, 2e-5);
  SparseRun run(c);
  run.Select();
  run.Forward();
  ExpectNear(ToDoubleValues(run.out), SparseOracle(c).Attend(run.Point(), run.Numbers()).out, 1e-5, "out");
}

TEST(SparseAttentionKernel, GivesTheSameBitsOnAnyNumberOfThreads) {
  SparseCase c = Case({}, WholeSequence(300), {WholeSequence(300)});
  c.top_k = 40;
  c.batch = 2;
  const int threads = ThreadCount();
  const auto results = [&c](int count) {
    SetThreadCount(count);
    SparseRun run(c);
    run.Select();
    run.Forward();
    run.Backward();
    Doubles all = {run.SelectedLoss(1.0F)};
    const auto add = [&all](const TensorView& view) {
      const Doubles more = ToDoubleValues(view);
      all.insert(all.end(), more.begin(), more.end());
    };
    for (const TensorView& view :
         {run.out, run.lse, run.dq, run.gradients[0].dk, run.gradients[0].dv, run.target, run.index_dq,
          run.index_dweights, run.index_dk[0], run.selection.keys.view(), run.selection.scores.view()}) {
      if (view.dtype == DType::kI32) continue;
      add(view);
    }
    all.push_back(run.DenseLoss(1.0F));
    for (const TensorView& view : {run.index_dq, run.index_dweights, run.index_dk[0]}) add(view);
    return all;
  };
  const Doubles one = results(1);
  EXPECT_EQ(results(2), one);
  EXPECT_EQ(results(3), one);
  SetThreadCount(threads);
}

TEST(SelectedMass, IsTheShareOfDenseAttentionOfEveryNthQuery) {
  for (const int64_t stride : {1, 3, 100}) {
    for (NamedCase& named : Cases()) {
      SCOPED_TRACE(named.name);
      SparseCase& c = named.sparse_case;
      c.batch = 2;
      SparseRun run(c);
      run.Select();
      const AttentionMass mass = SelectedMass(run.problem, run.q, c.q_runs, run.selection, run.keys, stride);
      const SparseOracle oracle(c);
      const SelectedNumbers visible = oracle.VisibleKeys();
      const Doubles all = oracle.Attend(run.Point(), visible).lse;
      const Doubles part = oracle.Attend(run.Point(), run.Numbers()).lse;
      double expected = 0.0;
      int64_t pairs = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        if (static_cast<int64_t>(i) % c.queries() % stride != 0 || std::isinf(all[i])) continue;
        expected += std::exp(part[i] - all[i]);
        ++pairs;
      }
      EXPECT_EQ(mass.pairs, pairs);
      EXPECT_NEAR(mass.selected, expected, 1e-4);
    }
  }
}

}  // namespace
}  // namespace weft::testing
