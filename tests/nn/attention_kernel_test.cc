#include "weft/nn/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/support/attention_oracle.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

// How the tensors lie in memory.
enum class Memory { kDense, kHeadsFirst, kPartOfWider };

// [batch, tokens, heads, dim] with test values.
TensorView Make(DType dtype, const Shape& shape, Memory memory, int64_t salt, std::vector<Tensor>& keep) {
  const int64_t batch = shape[0], tokens = shape[1], heads = shape[2], dim = shape[3];
  switch (memory) {
    case Memory::kDense:
      keep.push_back(TestTensor(dtype, {batch, tokens, heads, dim}, salt));
      return keep.back().view();
    case Memory::kHeadsFirst:
      keep.push_back(TestTensor(dtype, {batch, heads, tokens, dim}, salt));
      return keep.back().view().Permute({0, 2, 1, 3});
    case Memory::kPartOfWider:
      keep.push_back(TestTensor(dtype, {batch, tokens + 2, heads + 1, dim + 3}, salt));
      return keep.back().view().Slice(1, 1, tokens).Slice(2, 1, heads).Slice(3, 2, dim);
  }
  return {};
}

// What is overwritten must not be read before.
void FillWithNan(const TensorView& view) {
  const Tensor nan = Tensor::Empty(DType::kF32, view.shape);
  std::fill_n(nan.As<float>(), nan.elements(), std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(StridedCopy(nan.view(), view).ok());
}

struct Case {
  AttentionMask mask;
  TokenRuns q_runs;
  std::vector<TokenRuns> key_blocks;
  int64_t batch = 1, heads = 2, kv_heads = 2, group = 1, head_offset = 0;
  int64_t head_dim = 8, value_dim = 8;
  DType dtype = DType::kF32;
  Memory memory = Memory::kDense;
  float scale = 0.3F;
};

// The kernels' tensors for a case, and the same problem for the oracle.
struct KernelRun {
  explicit KernelRun(const Case& c) : problem{c.mask, c.scale, c.group, c.head_offset} {
    const int64_t queries = TokenCount(c.q_runs);
    q = Make(c.dtype, {c.batch, queries, c.heads, c.head_dim}, c.memory, 1, keep);
    dout = Make(c.dtype, {c.batch, queries, c.heads, c.value_dim}, c.memory, 2, keep);
    out = Make(DType::kF32, {c.batch, queries, c.heads, c.value_dim}, c.memory, 3, keep);
    dq = Make(DType::kF32, q.shape, c.memory, 4, keep);
    keep.push_back(Tensor::Empty(DType::kF32, {c.batch, c.heads, queries}));
    lse = keep.back().view();
    keep.push_back(Tensor::Empty(DType::kF32, {c.batch, c.heads, queries}));
    delta = keep.back().view();
    for (const TokenRuns& runs : c.key_blocks) {
      const int64_t tokens = TokenCount(runs);
      const auto salt = static_cast<int64_t>(10 * keys.size());
      const Shape k_shape = {c.batch, tokens, c.kv_heads, c.head_dim};
      const Shape v_shape = {c.batch, tokens, c.kv_heads, c.value_dim};
      keys.push_back({Make(c.dtype, k_shape, c.memory, salt + 5, keep),
                      Make(c.dtype, v_shape, c.memory, salt + 6, keep), &runs});
      gradients.push_back({Make(DType::kF32, k_shape, c.memory, salt + 7, keep),
                           Make(DType::kF32, v_shape, c.memory, salt + 8, keep)});
    }
    oracle.mask = c.mask;
    oracle.scale = static_cast<double>(c.scale);
    oracle.batch = c.batch;
    oracle.heads = c.heads;
    oracle.kv_heads = c.kv_heads;
    oracle.group = c.group;
    oracle.head_offset = c.head_offset;
    oracle.head_dim = c.head_dim;
    oracle.value_dim = c.value_dim;
    oracle.q_runs = c.q_runs;
    oracle.k_runs = AllKeys(c);
  }

  static TokenRuns AllKeys(const Case& c) {
    TokenRuns all;
    for (const TokenRuns& runs : c.key_blocks) all.insert(all.end(), runs.begin(), runs.end());
    return all;
  }

  void Forward(const TokenRuns& q_runs) {
    FillWithNan(out);
    FillWithNan(lse);
    AttentionForward(problem, q, q_runs, keys, out, lse);
  }
  void Backward(const TokenRuns& q_runs, float dq_beta = 0.0F, float key_beta = 0.0F) {
    if (dq_beta == 0.0F) FillWithNan(dq);
    for (const KeyGradients& gradient : gradients) {
      if (key_beta == 0.0F) FillWithNan(gradient.dk);
      if (key_beta == 0.0F) FillWithNan(gradient.dv);
    }
    AttentionDelta(out, dout, delta);
    AttentionBackward(problem, q, q_runs, keys, lse, delta, dout, dq, dq_beta, gradients, key_beta);
  }

  std::vector<Tensor> keep;
  AttentionProblem problem;
  TensorView q, dout, out, dq, lse, delta;
  std::vector<KeyBlock> keys;
  std::vector<KeyGradients> gradients;
  OracleAttention oracle;
};

// The blocks' values as those of one tensor [batch, keys, ...].
template <typename Block>
std::vector<double> Joined(const std::vector<Block>& blocks, TensorView Block::*which, int64_t batch) {
  std::vector<double> joined;
  for (int64_t row = 0; row < batch; ++row) {
    for (const Block& block : blocks) {
      const std::vector<double> part = ToDoubleValues((block.*which).Slice(0, row, 1));
      joined.insert(joined.end(), part.begin(), part.end());
    }
  }
  return joined;
}

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 1.0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(actual[i], expected[i]) << what << " at " << i;
    } else {
      ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << what << " at " << i;
    }
  }
}

// The oracle's results for a case.
struct Expected {
  Expected(const Case& c, const KernelRun& run)
      : q(ToDoubleValues(run.q)),
        k(Joined(run.keys, &KeyBlock::k, c.batch)),
        v(Joined(run.keys, &KeyBlock::v, c.batch)),
        outputs(OracleForward(run.oracle, q, k, v)),
        gradients(OracleBackward(run.oracle, q, k, v, ToDoubleValues(run.dout))) {}
  std::vector<double> q, k, v;
  OracleOutputs outputs;
  OracleGradients gradients;
};

void ExpectOutputs(const KernelRun& run, const OracleOutputs& expected, double tolerance) {
  ExpectNear(ToDoubleValues(run.out), expected.out, tolerance, "out");
  ExpectNear(ToDoubleValues(run.lse), expected.lse, tolerance, "lse");
}

void ExpectGradients(const Case& c, const KernelRun& run, const OracleGradients& expected, double tolerance) {
  ExpectNear(ToDoubleValues(run.dq), expected.dq, tolerance, "dq");
  ExpectNear(Joined(run.gradients, &KeyGradients::dk, c.batch), expected.dk, tolerance, "dk");
  ExpectNear(Joined(run.gradients, &KeyGradients::dv, c.batch), expected.dv, tolerance, "dv");
}

void Check(const Case& c, const std::string& what, double tolerance = 1e-5) {
  SCOPED_TRACE(what);
  KernelRun run(c);
  const Expected expected(c, run);
  run.Forward(c.q_runs);
  ExpectOutputs(run, expected.outputs, tolerance);
  run.Backward(c.q_runs);
  ExpectGradients(c, run, expected.gradients, 2 * tolerance);
}

struct NamedMask {
  const char* name;
  AttentionMask mask;
};

std::vector<NamedMask> Masks() {
  return {{"full", {false, std::nullopt}},
          {"causal", {true, std::nullopt}},
          {"window of 1", {true, 1}},
          {"window of 7", {true, 7}},
          {"window of 100", {true, 100}}};
}

struct NamedRuns {
  const char* name;
  TokenRuns q_runs;
  std::vector<TokenRuns> key_blocks;
};

std::vector<NamedRuns> Layouts() {
  return {
      {"one sequence", WholeSequence(37), {WholeSequence(37)}},
      {"the middle part", {{0, 20, 13}}, {{{0, 0, 20}}, {{0, 20, 13}}, {{0, 33, 7}}}},
      {"head and tail", {{0, 5, 5}, {0, 30, 6}}, {{{0, 0, 5}, {0, 36, 4}}, {{0, 5, 5}, {0, 30, 6}}}},
      {"keys after all queries", {{0, 3, 5}}, {{{0, 8, 9}}}},
      {"documents",
       {{7, 0, 3}, {8, 0, 11}, {9, 0, 1}, {10, 0, 9}},
       {{{7, 0, 3}, {8, 0, 11}, {9, 0, 1}, {10, 0, 9}}}},
      {"parts of documents",
       {{1, 4, 3}, {2, 0, 0}, {3, 9, 5}, {4, 0, 2}},
       {{{1, 0, 7}, {3, 0, 9}}, {{3, 9, 9}, {5, 0, 4}}, {}}},
      {"keys in another order", {{0, 10, 10}}, {{{0, 15, 5}, {0, 0, 10}, {0, 10, 5}}}},
      {"no queries", {}, {WholeSequence(5)}},
      {"no keys", WholeSequence(5), {}},
  };
}

TEST(AttentionKernel, AgreesWithPlainLoopsForEveryMaskAndLayoutOfTokens) {
  for (const NamedMask& mask : Masks()) {
    for (const NamedRuns& runs : Layouts()) {
      Case c;
      c.mask = mask.mask;
      c.q_runs = runs.q_runs;
      c.key_blocks = runs.key_blocks;
      Check(c, absl::StrCat(mask.name, ", ", runs.name));
      c.memory = Memory::kPartOfWider;
      c.batch = 2;
      c.heads = 6;
      c.group = 3;
      c.head_dim = 5;
      c.value_dim = 9;
      Check(c, absl::StrCat(mask.name, ", ", runs.name, ", grouped in wider memory"));
    }
  }
}

// Lengths and positions on both sides of the ends of tiles and of their parts, and windows that end within.
TEST(AttentionKernel, AgreesWithPlainLoopsAcrossTiles) {
  const std::vector<AttentionMask> masks = {{true, std::nullopt}, {true, 65}, {true, 300}};
  for (const AttentionMask& mask : masks) {
    Case c;
    c.mask = mask;
    c.heads = c.kv_heads = 1;
    c.head_dim = 3;
    c.value_dim = 2;
    for (const int64_t tokens : {63, 64, 65, 257, 520}) {
      c.q_runs = WholeSequence(tokens);
      c.key_blocks = {WholeSequence(tokens)};
      Check(c, absl::StrCat(tokens, " tokens, window ", mask.window.value_or(0)));
    }
    c.q_runs = {{0, 100, 130}, {0, 700, 131}};
    c.key_blocks = {{{0, 0, 100}, {0, 831, 70}}, {{0, 230, 470}}, {{0, 100, 130}, {0, 700, 131}}};
    Check(c, absl::StrCat("head and tail, window ", mask.window.value_or(0)));
  }
}

TEST(AttentionKernel, AgreesWithPlainLoopsForPacksOfManyDocuments) {
  Case c;
  c.heads = 2;
  c.kv_heads = 1;
  c.group = 2;
  c.head_dim = c.value_dim = 4;
  for (int64_t document = 0; document < 40; ++document)
    c.q_runs.push_back({document, 0, 1 + document * 7 % 31});
  c.key_blocks = {c.q_runs};
  Check(c, "whole documents");
  c.mask.causal = false;
  Check(c, "whole documents, full");
  for (TokenRun& run : c.q_runs) {
    run.position = run.count / 2;
    run.count -= run.position;
  }
  c.mask.causal = true;
  Check(c, "their second halves");
}

// A rank that holds query heads 2 to 5 of groups of three has the kv heads 0 and 1.
TEST(AttentionKernel, TakesHeadsFromTheMiddleOfAGroup) {
  Case c;
  c.q_runs = WholeSequence(9);
  c.key_blocks = {WholeSequence(9)};
  c.heads = 4;
  c.group = 3;
  c.head_offset = 2;
  Check(c, "the last of one group and all of the next");
  c.kv_heads = 3;
  Check(c, "and a kv head that nobody reads");
  c.heads = 0;
  Check(c, "no query heads");
}

TEST(AttentionKernel, TakesAnyStrides) {
  for (const Memory memory : {Memory::kDense, Memory::kHeadsFirst, Memory::kPartOfWider}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Case c;
      c.q_runs = WholeSequence(70);
      c.key_blocks = {WholeSequence(70)};
      c.batch = 2;
      c.heads = 6;
      c.kv_heads = 3;
      c.group = 2;
      c.head_dim = 12;
      c.value_dim = 7;
      c.memory = memory;
      c.dtype = dtype;
      Check(c, absl::StrCat("memory ", static_cast<int>(memory), " ", std::string(Name(dtype))),
            dtype == DType::kF32 ? 1e-5 : 0x1p-7);
    }
  }
}

TEST(AttentionKernel, RoundsResultsToTheDtypeOfTheQueries) {
  Case c;
  c.q_runs = WholeSequence(33);
  c.key_blocks = {WholeSequence(33)};
  c.dtype = DType::kBF16;
  KernelRun wide(c);
  wide.Forward(c.q_runs);
  wide.Backward(c.q_runs);
  KernelRun narrow(c);
  const auto make = [&narrow](const Shape& shape) {
    narrow.keep.push_back(Tensor::Empty(DType::kBF16, shape));
    return narrow.keep.back().view();
  };
  narrow.out = make(wide.out.shape);
  narrow.Forward(c.q_runs);
  EXPECT_EQ(ToDoubleValues(narrow.lse), ToDoubleValues(wide.lse));
  ExpectNear(ToDoubleValues(narrow.out), ToDoubleValues(wide.out), 0x1p-8, "out");
  narrow.out = wide.out;
  narrow.dq = make(wide.dq.shape);
  narrow.gradients = {{make(wide.gradients[0].dk.shape), make(wide.gradients[0].dv.shape)}};
  narrow.Backward(c.q_runs);
  const auto expect_rounded = [](const TensorView& rounded, const TensorView& values) {
    std::vector<double> expected = ToDoubleValues(values);
    for (double& value : expected) value = ToFloat(ToBF16(static_cast<float>(value)));
    EXPECT_EQ(ToDoubleValues(rounded), expected);
  };
  expect_rounded(narrow.dq, wide.dq);
  expect_rounded(narrow.gradients[0].dk, wide.gradients[0].dk);
  expect_rounded(narrow.gradients[0].dv, wide.gradients[0].dv);
}

TEST(AttentionKernel, AddsToWhatItsTargetsHold) {
  for (const int64_t group : {1, 2}) {
    for (const float beta : {1.0F, -0.5F}) {
      Case c;
      c.q_runs = {{0, 2, 70}, {0, 90, 5}};
      c.key_blocks = {{{0, 0, 80}}, {{0, 89, 6}}, {{0, 200, 3}}};
      c.heads = 2;
      c.kv_heads = 2 / group;
      c.group = group;
      KernelRun run(c);
      Expected expected(c, run);
      const auto add = [beta](std::vector<double>& target, const std::vector<double>& old, double factor) {
        for (size_t i = 0; i < target.size(); ++i) target[i] += static_cast<double>(beta) * factor * old[i];
      };
      add(expected.gradients.dq, ToDoubleValues(run.dq), 2.0);
      add(expected.gradients.dk, Joined(run.gradients, &KeyGradients::dk, 1), 1.0);
      add(expected.gradients.dv, Joined(run.gradients, &KeyGradients::dv, 1), 1.0);
      run.Forward(c.q_runs);
      run.Backward(c.q_runs, 2.0F * beta, beta);
      ExpectGradients(c, run, expected.gradients, 2e-5);
    }
  }
}

// As a ring does: dq is summed over the calls, each block's dk and dv come from its own.
TEST(AttentionKernel, GivesTheSameGradientsBlockByBlock) {
  Case c;
  c.q_runs = {{0, 30, 20}};
  c.key_blocks = {{{0, 30, 20}}, {{0, 0, 30}}, {{0, 50, 20}}};
  KernelRun run(c);
  const Expected expected(c, run);
  run.Forward(c.q_runs);
  AttentionDelta(run.out, run.dout, run.delta);
  for (size_t i = 0; i < run.keys.size(); ++i) {
    AttentionBackward(run.problem, run.q, c.q_runs, {run.keys[i]}, run.lse, run.delta, run.dout, run.dq,
                      i == 0 ? 0.0F : 1.0F, {run.gradients[i]}, 0.0F);
  }
  ExpectGradients(c, run, expected.gradients, 2e-5);
}

TEST(AttentionKernel, GivesTheSameBitsOnAnyNumberOfThreads) {
  Case c;
  c.q_runs = WholeSequence(600);
  c.key_blocks = {WholeSequence(600)};
  c.heads = 4;
  c.group = 2;
  const int threads = ThreadCount();
  const auto results = [&c](int count) {
    SetThreadCount(count);
    KernelRun run(c);
    run.Forward(c.q_runs);
    run.Backward(c.q_runs);
    std::vector<double> all = ToDoubleValues(run.out);
    for (const TensorView& view : {run.lse, run.dq, run.gradients[0].dk, run.gradients[0].dv}) {
      const std::vector<double> more = ToDoubleValues(view);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  const std::vector<double> one = results(1);
  EXPECT_EQ(results(2), one);
  EXPECT_EQ(results(3), one);
  SetThreadCount(threads);
}

}  // namespace
}  // namespace weft::testing
