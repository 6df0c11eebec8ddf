#include "tests/nn/attention/attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

// A view [batch, tokens, heads, dim] with test values, in the given memory layout.
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

// Makes a read of memory that must be overwritten visible in the results.
void FillWithNan(const TensorView& view) {
  const Tensor nan = Tensor::Empty(DType::kF32, view.shape);
  std::fill_n(nan.As<float>(), nan.elements(), std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(StridedCopy(nan.view(), view).ok());
}

TokenRuns AllKeys(const AttentionCase& c) {
  TokenRuns all;
  for (const TokenRuns& runs : c.key_blocks) all.insert(all.end(), runs.begin(), runs.end());
  return all;
}

}  // namespace

KernelRun::KernelRun(const AttentionCase& c) : problem{c.mask, c.scale, c.group, c.head_offset, c.pair_mask} {
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
  oracle.pair_mask = c.pair_mask;
}

void KernelRun::Forward(const TokenRuns& q_runs) {
  FillWithNan(out);
  FillWithNan(lse);
  AttentionForward(problem, q, q_runs, keys, out, lse);
}

void KernelRun::Backward(const TokenRuns& q_runs, float dq_beta, float key_beta) {
  if (dq_beta == 0.0F) FillWithNan(dq);
  for (const KeyGradients& gradient : gradients) {
    if (key_beta == 0.0F) FillWithNan(gradient.dk);
    if (key_beta == 0.0F) FillWithNan(gradient.dv);
  }
  AttentionDelta(out, dout, delta);
  AttentionBackward(problem, q, q_runs, keys, BackwardInputs(),
                    {.dq = dq, .dq_beta = dq_beta, .keys = gradients, .key_beta = key_beta});
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

ExpectedAttention::ExpectedAttention(const AttentionCase& c, const KernelRun& run)
    : q(ToDoubleValues(run.q)),
      k(Joined(run.keys, &KeyBlock::k, c.batch)),
      v(Joined(run.keys, &KeyBlock::v, c.batch)),
      outputs(OracleForward(run.oracle, q, k, v)),
      gradients(OracleBackward(run.oracle, q, k, v, ToDoubleValues(run.dout))) {}

void ExpectOutputs(const KernelRun& run, const OracleOutputs& expected, double tolerance) {
  ExpectNear(ToDoubleValues(run.out), expected.out, tolerance, "out");
  ExpectNear(ToDoubleValues(run.lse), expected.lse, tolerance, "lse");
}

void ExpectGradients(const AttentionCase& c, const KernelRun& run, const OracleGradients& expected,
                     double tolerance) {
  ExpectNear(ToDoubleValues(run.dq), expected.dq, tolerance, "dq");
  ExpectNear(Joined(run.gradients, &KeyGradients::dk, c.batch), expected.dk, tolerance, "dk");
  ExpectNear(Joined(run.gradients, &KeyGradients::dv, c.batch), expected.dv, tolerance, "dv");
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

void CheckAttention(const AttentionCase& c, const std::string& what, double tolerance) {
  SCOPED_TRACE(what);
  KernelRun run(c);
  const ExpectedAttention expected(c, run);
  run.Forward(c.q_runs);
  ExpectOutputs(run, expected.outputs, tolerance);
  run.Backward(c.q_runs);
  ExpectGradients(c, run, expected.gradients, 2 * tolerance);
}

}  // namespace weft::testing
