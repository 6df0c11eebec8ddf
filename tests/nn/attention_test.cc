#include "weft/nn/attention.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

using Values = std::vector<Doubles>;

struct AttentionShape {
  int64_t batch, seq, heads, kv_heads, head_dim;
};

Tensors MakeInputs(const AttentionShape& s, DType dtype) {
  return {TestTensor(dtype, {s.batch, s.seq, s.heads, s.head_dim}, 1),
          TestTensor(dtype, {s.batch, s.seq, s.kv_heads, s.head_dim}, 2),
          TestTensor(dtype, {s.batch, s.seq, s.kv_heads, s.head_dim}, 3)};
}

void Check(const AttentionShape& shape, const GradientCheckOptions& options) {
  SCOPED_TRACE(absl::StrCat("batch ", shape.batch, " seq ", shape.seq, " heads ", shape.heads, "/",
                            shape.kv_heads, " head_dim ", shape.head_dim));
  Attention attention("attention");
  CheckGradients(
      attention, MakeInputs(shape, options.dtype),
      [&](const Values& v) -> Values {
        return {testing::OracleForward(oracle::CausalAttention(shape.batch, shape.seq, shape.heads,
                                                               shape.kv_heads, shape.head_dim),
                                       v[0], v[1], v[2])
                    .out};
      },
      options);
}

TEST(Attention, HasTheGradientsOfItsDifferences) {
  for (const GradientCheckOptions& options :
       {GradientCheckOptions{}, GradientCheckOptions{.dtype = DType::kBF16, .tolerance = 0x1p-6}}) {
    Check({1, 1, 1, 1, 2}, options);
    Check({2, 7, 2, 2, 6}, options);
    Check({1, 9, 6, 2, 4}, options);   // Grouped queries.
    Check({2, 5, 5, 1, 12}, options);  // One key head for all.
  }
}

// Lengths on both sides of the ends of query and key blocks.
TEST(Attention, HasTheGradientsOfItsDifferencesAcrossTiles) {
  for (const int64_t seq : {255, 256, 257, 511, 513, 790}) {
    Check({1, seq, 2, 1, 4}, {.tolerance = 2e-5, .elements = 5});
  }
  Check({1, 600, 2, 1, 8}, {.dtype = DType::kBF16, .tolerance = 0x1p-5, .elements = 2});
}

TEST(Attention, IsStableForLargeScores) {
  Attention attention("attention");
  const Tensor q = Tensor::Empty(DType::kF32, {1, 600, 1, 2});
  const Tensor v = Tensor::Empty(DType::kF32, {1, 600, 1, 2});
  // Scores grow with the key, so that each query sees its own key alone, and each tile raises the maximum.
  for (int64_t i = 0; i < q.elements(); ++i) {
    q.As<float>()[i] = static_cast<float>(10 * (i / 2 + 1));
    v.As<float>()[i] = static_cast<float>(i);
  }
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors out, attention.Forward(invocation, {q, q, v}));
  for (int64_t i = 0; i < v.elements(); ++i) ASSERT_EQ(out[0].As<float>()[i], v.As<float>()[i]) << i;
}

TEST(Attention, GivesTheSameBitsOnAnyNumberOfThreads) {
  const AttentionShape shape = {2, 300, 4, 2, 8};
  const int threads = ThreadCount();
  const auto run = [&](int count) {
    SetThreadCount(count);
    Attention attention("attention");
    Invocation invocation;
    Tensors results = *attention.Forward(invocation, MakeInputs(shape, DType::kF32));
    const Tensors gradients =
        *attention.Backward(invocation, {TestTensor(DType::kF32, results[0].shape(), 4)});
    results.insert(results.end(), gradients.begin(), gradients.end());
    std::vector<float> values;
    for (const Tensor& tensor : results) {
      values.insert(values.end(), tensor.As<float>(), tensor.As<float>() + tensor.elements());
    }
    return values;
  };
  const std::vector<float> one = run(1);
  EXPECT_EQ(run(2), one);
  EXPECT_EQ(run(3), one);
  SetThreadCount(threads);
}

}  // namespace
}  // namespace weft
