#include "weft/nn/attention_kernel.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/support/attention_oracle.h"
#include "weft/core/parallel.h"

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
struct Run {
  explicit Run(const Case& c) : problem{c.mask, c.scale, c.group, c.head_offset} {
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
    oracle = {c.mask,        static_cast<double>(c.scale),
              c.batch,       c.heads,
              c.kv_heads,    c.group,
              c.head_offset, c.head_dim,
              c.value_dim,   c.q_runs,
              AllKeys(c)};
  }

  static TokenRuns AllKeys(const Case& c) {
    TokenRuns all;
    for (const TokenRuns& runs : c.key_blocks) all.insert(all.end(), runs.begin(), runs.end());
    return all;
  }

  void Forward(const TokenRuns& q_runs) { AttentionForward(problem, q, q_runs, keys, out, lse); }
  void Backward(const TokenRuns& q_runs, float dq_beta = 0.0F, float key_beta = 0.0F) {
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

void Check(const Case& c, const std::string& what) {
  SCOPED_TRACE(what);
  const double factor = c.dtype == DType::kF32 ? 1.0 : 1000.0;
  Run run(c);
  const std::vector<double> q = ToDoubleValues(run.q);
  const std::vector<double> k = Joined(run.keys, &KeyBlock::k, c.batch);
  const std::vector<double> v = Joined(run.keys, &KeyBlock::v, c.batch);
  run.Forward(c.q_runs);
  const OracleOutputs outputs = OracleForward(run.oracle, q, k, v);
  ExpectNear(ToDoubleValues(run.out), outputs.out, 1e-5 * factor, "out");
  ExpectNear(ToDoubleValues(run.lse), outputs.lse, 1e-5 * factor, "lse");
  run.Backward(c.q_runs);
  const OracleGradients gradients = OracleBackward(run.oracle, q, k, v, ToDoubleValues(run.dout));
  ExpectNear(ToDoubleValues(run.dq), gradients.dq, 2e-5 * factor, "dq");
  ExpectNear(Joined(run.gradients, &KeyGradients::dk, c.batch), gradients.dk, 2e-5 * factor, "dk");
  ExpectNear(Joined(run.gradients, &KeyGradients::dv, c.batch), gradients.dv, 2e-5 * factor, "dv");
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

}  // namespace
}  // namespace weft::testing
