#include "weft/nn/attention.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

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
        return {OracleForward(oracle::CausalAttention(shape.batch, shape.seq, shape.heads, shape.kv_heads,
                                                      shape.head_dim),
                              v[0], v[1], v[2])
                    .out};
      },
      options);
}

TEST(Attention, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options :
       {GradientCheckOptions{}, GradientCheckOptions{.dtype = DType::kBF16, .tolerance = 0x1p-6},
        GradientCheckOptions{.dtype = DType::kF16, .tolerance = 0x1p-9}}) {
    Check({1, 1, 1, 1, 2}, options);
    Check({2, 7, 2, 2, 6}, options);
    Check({1, 9, 6, 2, 4}, options);   // Grouped-query attention.
    Check({2, 5, 5, 1, 12}, options);  // Multi-query attention.
  }
}

TEST(Attention, HasGradientsThatMatchFiniteDifferencesAcrossTiles) {
  for (const int64_t seq : {257, 520}) Check({1, seq, 2, 1, 4}, {.tolerance = 2e-5, .elements = 3});
}

TEST(Attention, IsStableForLargeScores) {
  Attention attention("attention");
  const Tensor q = Tensor::Empty(DType::kF32, {1, 600, 1, 2});
  const Tensor v = Tensor::Empty(DType::kF32, {1, 600, 1, 2});
  // Scores grow with the key, so that each query gives all weight to its own key, and each tile raises the
  // maximum.
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

TEST(Attention, GivesTheSameResultsInBothLayouts) {
  Attention by_token("attention", {.mask = {true, 3}});
  Attention by_head("attention", {.mask = {true, 3}, .layout = AttentionLayout::kBhsd});
  const auto swapped = [](const Tensor& tensor) {
    const Shape& s = tensor.shape();
    Tensor result = Tensor::Empty(tensor.dtype(), {s[0], s[2], s[1], s[3]});
    EXPECT_OK(StridedCopy(tensor.view().Permute({0, 2, 1, 3}), result.view()));
    return result;
  };
  const Tensors inputs = MakeInputs({2, 11, 4, 2, 6}, DType::kF32);
  const Tensor dout = TestTensor(DType::kF32, {2, 11, 4, 6}, 4);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors out, by_token.Forward(invocation, inputs));
  ASSERT_OK_AND_ASSIGN(const Tensors gradients, by_token.Backward(invocation, {dout}));
  ASSERT_OK_AND_ASSIGN(
      const Tensors head_out,
      by_head.Forward(invocation, {swapped(inputs[0]), swapped(inputs[1]), swapped(inputs[2])}));
  ASSERT_OK_AND_ASSIGN(const Tensors head_gradients, by_head.Backward(invocation, {swapped(dout)}));
  EXPECT_TRUE(invocation.empty());
  EXPECT_EQ(head_out[0].shape(), (Shape{2, 4, 11, 6}));
  EXPECT_THAT(ToDoubleValues(swapped(head_out[0]).view()),
              Pointwise(DoubleNear(1e-6), ToDoubleValues(out[0].view())));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(ToDoubleValues(swapped(head_gradients[i]).view()),
                Pointwise(DoubleNear(1e-6), ToDoubleValues(gradients[i].view())))
        << i;
  }
}

TEST(Attention, ReturnsTheLogSumExpOnRequest) {
  Attention attention("attention", {.mask = {false, std::nullopt}, .scale = 0.25F, .returns_lse = true});
  const Tensors inputs = {TestTensor(DType::kF32, {1, 3, 2, 4}, 1), TestTensor(DType::kF32, {1, 5, 2, 4}, 2),
                          TestTensor(DType::kF32, {1, 5, 2, 7}, 3)};
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors outputs, attention.Forward(invocation, inputs));
  ASSERT_EQ(outputs.size(), 2U);
  OracleAttention oracle = oracle::CausalAttention(1, 3, 2, 2, 4);
  oracle.mask.causal = false;
  oracle.scale = 0.25;
  oracle.value_dim = 7;
  oracle.k_runs = WholeSequence(5);
  const OracleOutputs expected =
      OracleForward(oracle, ToDoubleValues(inputs[0].view()), ToDoubleValues(inputs[1].view()),
                    ToDoubleValues(inputs[2].view()));
  EXPECT_THAT(ToDoubleValues(outputs[0].view()), Pointwise(DoubleNear(1e-6), expected.out));
  EXPECT_THAT(ToDoubleValues(outputs[1].view()), Pointwise(DoubleNear(1e-6), expected.lse));
  EXPECT_OK(attention.Backward(invocation, {TestTensor(DType::kF32, {1, 3, 2, 7}, 4), Tensor()}).status());
}

TEST(Attention, DoesNotAttendAcrossDocuments) {
  Attention attention("attention");
  const auto parts = std::make_shared<SequenceParts>();
  parts->parts = {{{0, 0, 4}, {1, 0, 3}}};
  const Tensors inputs = MakeInputs({1, 7, 2, 1, 4}, DType::kF32);
  Invocation pack;
  pack.SetSequence(parts);
  ASSERT_OK_AND_ASSIGN(const Tensors together, attention.Forward(pack, inputs));
  int64_t first = 0;
  for (const TokenRun& run : parts->runs()) {
    Tensors document;
    for (const Tensor& input : inputs)
      document.push_back(Tensor::Borrow(input.view().Slice(1, first, run.count)));
    Invocation alone;
    ASSERT_OK_AND_ASSIGN(const Tensors out, attention.Forward(alone, document));
    EXPECT_THAT(ToDoubleValues(together[0].view().Slice(1, first, run.count)),
                Pointwise(DoubleNear(1e-6), ToDoubleValues(out[0].view())));
    first += run.count;
  }
}

TEST(Attention, TakesQueriesWithoutHeads) {
  Attention attention("attention");
  Invocation invocation;
  const Tensor q = Tensor::Zeros(DType::kF32, {1, 8, 0, 4});
  const Tensor k = Tensor::Zeros(DType::kF32, {1, 8, 1, 4});
  ASSERT_OK_AND_ASSIGN(const Tensors out, attention.Forward(invocation, {q, k, k}));
  EXPECT_EQ(out[0].shape(), q.shape());
}

TEST(Attention, RejectsInvalidInputsAndNamesTheReason) {
  const auto message_of = [](const AttentionOptions& options, const Tensors& inputs) {
    Attention attention("block.attention", options);
    Invocation invocation;
    const absl::Status status = attention.Forward(invocation, inputs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const auto tensor = [](Shape shape) { return Tensor::Zeros(DType::kF32, std::move(shape)); };
  const Tensor q = tensor({1, 4, 4, 2});
  EXPECT_THAT(message_of({}, {q, tensor({1, 5, 4, 2}), tensor({1, 5, 4, 2})}),
              AllOf(HasSubstr("block.attention"), HasSubstr("[1, 5, 4, 2]"),
                    HasSubstr("use a mask that is not causal")));
  EXPECT_THAT(message_of({}, {q, tensor({1, 4, 3, 2}), tensor({1, 4, 3, 2})}),
              HasSubstr("must divide the number of heads of q"));
  EXPECT_THAT(message_of({}, {q, tensor({1, 4, 4, 3}), tensor({1, 4, 4, 2})}), HasSubstr("same head_dim"));
  EXPECT_THAT(message_of({}, {q, tensor({2, 4, 4, 2}), tensor({1, 4, 4, 2})}), HasSubstr("batch sizes"));
  EXPECT_THAT(message_of({}, {q, tensor({1, 4, 4, 2}), tensor({1, 3, 4, 2})}),
              HasSubstr("same number of tokens"));
  EXPECT_THAT(message_of({}, {q, q}), HasSubstr("q, k and v"));
  EXPECT_THAT(message_of({}, {q, q, tensor({4, 2})}), HasSubstr("four dims"));
  EXPECT_THAT(message_of({}, {q, q, Tensor::Zeros(DType::kBF16, q.shape())}), HasSubstr("one dtype"));
  const Tensor indices = Tensor::Zeros(DType::kI32, q.shape());
  EXPECT_THAT(message_of({}, {indices, indices, indices}), HasSubstr("f32, bf16 or f16"));
  EXPECT_THAT(message_of({}, {q, q, Tensor::Borrow(q.view().Permute({0, 1, 3, 2}))}),
              HasSubstr("last dim must be contiguous"));
  TensorView expanded = q.view();
  expanded.strides[1] = 0;
  for (const Tensors& inputs :
       {Tensors{Tensor::Borrow(expanded), q, q}, Tensors{q, Tensor::Borrow(expanded), q},
        Tensors{q, q, Tensor::Borrow(expanded)}}) {
    EXPECT_THAT(message_of({}, inputs), HasSubstr("stride of the tokens must be at least"));
  }
  EXPECT_THAT(message_of({.mask = {true, 0}}, {q, q, q}), HasSubstr("keys_before is 0"));
  EXPECT_THAT(message_of({.scale = 0.0F}, {q, q, q}), HasSubstr("scale must be positive"));
}

TEST(Attention, RejectsASplitSequenceWithoutAnOperator) {
  Attention attention("attention");
  const auto parts = std::make_shared<SequenceParts>();
  parts->parts = {{{0, 0, 4}}, {{0, 4, 3}}};
  Invocation invocation;
  invocation.SetSequence(parts);
  EXPECT_THAT(attention.Forward(invocation, MakeInputs({1, 4, 1, 1, 2}, DType::kF32)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("2 ranks share")));
  parts->parts.pop_back();
  EXPECT_THAT(attention.Forward(invocation, MakeInputs({1, 5, 1, 1, 2}, DType::kF32)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("given 5 tokens")));
}

// Returns 2 v, and 2 dout as the gradient of v.
class DoublingOperator : public AttentionOperator {
 public:
  absl::StatusOr<Tensors> Forward(Invocation& invocation, const Attention& attention,
                                  const Tensors& inputs) override {
    invocation.Save(&attention, inputs);
    return Tensors{Doubled(inputs[2])};
  }
  absl::StatusOr<Tensors> Backward(Invocation& invocation, const Attention& attention,
                                   const Tensors& output_gradients) override {
    const Tensors inputs = invocation.PopSaved(&attention);
    return Tensors{inputs[0], inputs[1], Doubled(output_gradients[0])};
  }

 private:
  static Tensor Doubled(const Tensor& tensor) {
    Tensor result = Tensor::Empty(tensor.dtype(), tensor.shape());
    EXPECT_OK(StridedCopy(tensor.view(), result.view(), 2.0F));
    return result;
  }
};

TEST(Attention, DelegatesToItsOperator) {
  Attention attention("attention");
  attention.SetOperator(std::make_shared<DoublingOperator>());
  const Tensors inputs = MakeInputs({1, 2, 1, 1, 2}, DType::kF32);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors out, attention.Forward(invocation, inputs));
  EXPECT_EQ(out[0].As<float>()[3], 2.0F * inputs[2].As<float>()[3]);
  ASSERT_OK_AND_ASSIGN(const Tensors gradients, attention.Backward(invocation, {inputs[1]}));
  EXPECT_EQ(gradients[2].As<float>()[3], 2.0F * inputs[1].As<float>()[3]);
  EXPECT_TRUE(invocation.empty());
  attention.SetOperator(nullptr);
  EXPECT_OK(attention.Forward(invocation, inputs).status());
}

}  // namespace
}  // namespace weft::testing
