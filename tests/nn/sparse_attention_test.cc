#include "weft/nn/sparse/sparse_attention.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/attention.h"

namespace weft::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int64_t kTokens = 23;

struct Sizes {
  int64_t batch = 2, tokens = kTokens, keys = kTokens, heads = 4, kv_heads = 2, head_dim = 6;
  int64_t index_heads = 3, index_dim = 4;
};

Tensors MakeInputs(const Sizes& s, DType dtype = DType::kF32) {
  return {TestTensor(dtype, {s.batch, s.tokens, s.heads, s.head_dim}, 1),
          TestTensor(dtype, {s.batch, s.keys, s.kv_heads, s.head_dim}, 2),
          TestTensor(dtype, {s.batch, s.keys, s.kv_heads, s.head_dim}, 3),
          TestTensor(dtype, {s.batch, s.tokens, s.index_heads, s.index_dim}, 4),
          TestTensor(dtype, {s.batch, s.keys, 1, s.index_dim}, 5),
          TestTensor(dtype, {s.batch, s.tokens, s.index_heads}, 6)};
}

// Outputs, gradients and statistics of one forward and backward.
struct PassResult {
  Doubles out;
  std::vector<Doubles> gradients;
  IndexerPass pass;
};

PassResult RunPass(SparseAttention& attention, const Tensors& inputs, const IndexerPass& settings,
                   std::shared_ptr<const SequenceParts> sequence = nullptr) {
  Invocation invocation;
  invocation.SetSequence(std::move(sequence));
  IndexerPassOf(invocation) = settings;
  PassResult result;
  const auto out = attention.Forward(invocation, inputs);
  EXPECT_OK(out.status());
  if (!out.ok()) return result;
  result.out = ToDoubleValues((*out)[0].view());
  const auto gradients =
      attention.Backward(invocation, {TestTensor((*out)[0].dtype(), (*out)[0].shape(), 9)});
  EXPECT_OK(gradients.status());
  EXPECT_TRUE(invocation.empty());
  if (!gradients.ok()) return result;
  for (const Tensor& gradient : *gradients) result.gradients.push_back(ToDoubleValues(gradient.view()));
  result.pass = IndexerPassOf(invocation);
  return result;
}

bool AllZero(const Doubles& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0.0; });
}

TEST(SparseAttention, HasOutputsAndGradientsOfDenseAttentionIfTopKCoversAllKeys) {
  for (const bool warm_up : {false, true}) {
    SparseAttention attention("attention", {.top_k = 1000});
    attention.AddForwardPreHook([warm_up](Module&, Invocation& invocation, Tensors&) {
      IndexerPassOf(invocation).warm_up = warm_up;
      return absl::OkStatus();
    });
    // With a loss factor of 0 the gradients of the index inputs are 0, as those of the oracle.
    CheckGradients(attention, MakeInputs({}), [](const Values& v) -> Values {
      return {OracleForward(oracle::CausalAttention(2, kTokens, 4, 2, 6), v[0], v[1], v[2]).out};
    });
  }
}

TEST(SparseAttention, GivesTheTrunkTheSameBitsWhateverTheLossFactor) {
  for (const bool warm_up : {false, true}) {
    SparseAttention attention("attention", {.top_k = 5});
    const PassResult without = RunPass(attention, MakeInputs({}), {.warm_up = warm_up});
    const PassResult with = RunPass(attention, MakeInputs({}), {.warm_up = warm_up, .loss_factor = 0.5F});
    EXPECT_EQ(with.out, without.out);
    EXPECT_EQ(with.pass.loss, without.pass.loss);
    for (const int input : {SparseAttention::kQ, SparseAttention::kK, SparseAttention::kV}) {
      EXPECT_EQ(with.gradients[static_cast<size_t>(input)], without.gradients[static_cast<size_t>(input)]);
    }
    for (const int input :
         {SparseAttention::kIndexQ, SparseAttention::kIndexK, SparseAttention::kIndexWeights}) {
      EXPECT_TRUE(AllZero(without.gradients[static_cast<size_t>(input)]));
      EXPECT_FALSE(AllZero(with.gradients[static_cast<size_t>(input)]));
    }
  }
}

// The indexer's loss of a pass with other index inputs.
double LossAt(SparseAttention& attention, Tensors inputs, bool warm_up, size_t which, int64_t index,
              float step) {
  inputs[which] = inputs[which].Copy();
  inputs[which].As<float>()[index] += step;
  return RunPass(attention, inputs, {.warm_up = warm_up}).pass.loss;
}

TEST(SparseAttention, HasIndexGradientsThatMatchDifferencesOfTheLoss) {
  constexpr float kStep = 1e-3F;
  for (const bool warm_up : {false, true}) {
    SparseAttention attention("attention", {.top_k = 1000});
    const Tensors inputs = MakeInputs({.batch = 1, .tokens = 9, .keys = 9});
    const PassResult result = RunPass(attention, inputs, {.warm_up = warm_up, .loss_factor = 1.0F});
    for (const size_t which : {3, 4, 5}) {
      for (int64_t i = 0; i < inputs[which].elements(); i += 5) {
        const double above = LossAt(attention, inputs, warm_up, which, i, kStep);
        const double below = LossAt(attention, inputs, warm_up, which, i, -kStep);
        EXPECT_NEAR(result.gradients[which][static_cast<size_t>(i)],
                    (above - below) / (2.0 * static_cast<double>(kStep)), 3e-3)
            << which << " at " << i;
      }
    }
  }
}

TEST(SparseAttention, ReportsLossQueriesAndMass) {
  SparseAttention attention("attention", {.top_k = 5});
  const PassResult sparse = RunPass(attention, MakeInputs({}), {.mass_stride = 4});
  EXPECT_GT(sparse.pass.loss, 0.0);
  EXPECT_EQ(sparse.pass.queries, 2 * kTokens);
  EXPECT_EQ(sparse.pass.mass_pairs, 2 * 4 * 6);
  EXPECT_GT(sparse.pass.selected_mass, 0.0);
  EXPECT_LT(sparse.pass.selected_mass, static_cast<double>(sparse.pass.mass_pairs));
  // The indexer selects the same keys in the warm-up stage, although attention does not use them.
  const PassResult warm_up = RunPass(attention, MakeInputs({}), {.warm_up = true, .mass_stride = 4});
  EXPECT_EQ(warm_up.pass.selected_mass, sparse.pass.selected_mass);
  EXPECT_EQ(warm_up.pass.mass_pairs, sparse.pass.mass_pairs);
}

TEST(SparseAttention, CountsARecomputedForwardOnce) {
  for (const bool warm_up : {false, true}) {
    const IndexerPass settings = {.warm_up = warm_up, .loss_factor = 0.5F, .mass_stride = 1};
    SparseAttention plain("attention", {.top_k = 5});
    SparseAttention checkpointed("attention", {.top_k = 5});
    checkpointed.SetActivationCheckpointing(true);
    const PassResult expected = RunPass(plain, MakeInputs({}), settings);
    const PassResult result = RunPass(checkpointed, MakeInputs({}), settings);
    EXPECT_EQ(result.gradients, expected.gradients);
    EXPECT_EQ(result.pass.loss, expected.pass.loss);
    EXPECT_EQ(result.pass.queries, expected.pass.queries);
    EXPECT_EQ(result.pass.selected_mass, expected.pass.selected_mass);
    EXPECT_EQ(result.pass.mass_pairs, expected.pass.mass_pairs);
  }
}

TEST(SparseAttention, OnlySelectsAndAttendsWithoutGradients) {
  SparseAttention attention("attention", {.top_k = 5});
  Invocation invocation(/*gradients=*/false);
  ASSERT_OK_AND_ASSIGN(const Tensors out, attention.Forward(invocation, MakeInputs({})));
  EXPECT_TRUE(invocation.empty());
  EXPECT_EQ(ToDoubleValues(out[0].view()), RunPass(attention, MakeInputs({}), {}).out);
  EXPECT_EQ(IndexerPassOf(invocation).loss, 0.0);
  EXPECT_EQ(IndexerPassOf(invocation).queries, 0);
}

TEST(SparseAttention, ComputesIn16BitsCloseToF32) {
  SparseAttention attention("attention", {.top_k = 1000});
  for (const bool warm_up : {false, true}) {
    const IndexerPass settings = {.warm_up = warm_up, .loss_factor = 0.5F};
    const PassResult wide = RunPass(attention, MakeInputs({}), settings);
    for (const auto& [dtype, rounding] : {std::pair(DType::kBF16, 0.01), std::pair(DType::kF16, 0.00125)}) {
      const PassResult narrow = RunPass(attention, MakeInputs({}, dtype), settings);
      EXPECT_THAT(narrow.out, Pointwise(DoubleNear(2 * rounding), wide.out));
      EXPECT_NEAR(narrow.pass.loss, wide.pass.loss, rounding * wide.pass.loss);
      for (size_t i = 0; i < SparseAttention::kInputs; ++i) {
        EXPECT_THAT(narrow.gradients[i], Pointwise(DoubleNear(5 * rounding), wide.gradients[i])) << i;
      }
    }
  }
}

// Rows of all tokens of `runs` in a tensor whose token dim is the sequence of one document.
Tensor TokensOf(const Tensor& tensor, const TokenRuns& runs) {
  Shape shape = tensor.shape();
  shape[1] = TokenCount(runs);
  Tensor part = Tensor::Empty(tensor.dtype(), shape);
  int64_t first = 0;
  for (const TokenRun& run : runs) {
    EXPECT_OK(
        StridedCopy(tensor.view().Slice(1, run.position, run.count), part.view().Slice(1, first, run.count)));
    first += run.count;
  }
  return part;
}

// Adds the rows of a part's tokens to those of the sequence.
void AddTokens(const Doubles& part, const TokenRuns& runs, const Shape& shape, Doubles& sequence) {
  const auto row = static_cast<size_t>(ElementCount(shape) / shape[0] / shape[1]);
  size_t at = 0;
  for (int64_t batch = 0; batch < shape[0]; ++batch) {
    for (const TokenRun& run : runs) {
      for (int64_t token = run.position; token < run.position + run.count; ++token) {
        for (size_t i = 0; i < row; ++i)
          sequence[static_cast<size_t>(batch * shape[1] + token) * row + i] += part[at++];
      }
    }
  }
}

// Every rank attends with its queries to the keys of all ranks. The gradients of the keys are sums over
// ranks.
TEST(SparseAttention, GivesTheResultsOfTheWholeSequenceWhenRanksShareIt) {
  const std::vector<TokenRuns> parts = {{{0, 0, 5}, {0, 18, 5}}, {{0, 5, 13}}, {}};
  TokenRuns all;
  for (const TokenRuns& part : parts) all.insert(all.end(), part.begin(), part.end());
  const Tensors inputs = MakeInputs({});
  for (const bool warm_up : {false, true}) {
    const IndexerPass settings = {.warm_up = warm_up, .loss_factor = 0.5F, .mass_stride = 1};
    SparseAttention attention("attention", {.top_k = 5});
    const PassResult whole = RunPass(attention, inputs, settings);
    std::vector<Doubles> sums;
    for (const Doubles& gradient : whole.gradients) sums.emplace_back(gradient.size());
    IndexerPass total;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const auto sequence = std::make_shared<SequenceParts>();
      sequence->parts = parts;
      sequence->own = static_cast<int>(rank);
      const auto is_of_keys = [](size_t input) {
        return input == SparseAttention::kK || input == SparseAttention::kV ||
               input == SparseAttention::kIndexK;
      };
      Tensors own;
      for (size_t i = 0; i < inputs.size(); ++i)
        own.push_back(TokensOf(inputs[i], is_of_keys(i) ? all : parts[rank]));
      // The output's gradient is that of the whole sequence.
      const Tensor dout = TokensOf(TestTensor(DType::kF32, inputs[0].shape(), 9), parts[rank]);
      Invocation invocation;
      invocation.SetSequence(sequence);
      IndexerPassOf(invocation) = settings;
      ASSERT_OK(attention.Forward(invocation, own).status());
      ASSERT_OK_AND_ASSIGN(const Tensors gradients, attention.Backward(invocation, {dout}));
      for (size_t i = 0; i < gradients.size(); ++i) {
        AddTokens(ToDoubleValues(gradients[i].view()), is_of_keys(i) ? all : parts[rank], inputs[i].shape(),
                  sums[i]);
      }
      total.loss += IndexerPassOf(invocation).loss;
      total.queries += IndexerPassOf(invocation).queries;
      total.selected_mass += IndexerPassOf(invocation).selected_mass;
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      EXPECT_THAT(sums[i], Pointwise(DoubleNear(1e-5), whole.gradients[i])) << i;
    }
    EXPECT_NEAR(total.loss, whole.pass.loss, 1e-5 * whole.pass.loss);
    EXPECT_EQ(total.queries, whole.pass.queries);
    EXPECT_NEAR(total.selected_mass, whole.pass.selected_mass, 1e-4);
  }
}

TEST(SparseAttention, RejectsASplitSequenceWithTheKeysOfOneRank) {
  SparseAttention attention("block.attention");
  const auto parts = std::make_shared<SequenceParts>();
  parts->parts = {{{0, 0, kTokens}}, {{0, kTokens, 3}}};
  Invocation invocation;
  invocation.SetSequence(parts);
  EXPECT_THAT(attention.Forward(invocation, MakeInputs({})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("2 ranks share the sequence")));
  EXPECT_THAT(attention.Forward(invocation, MakeInputs({.keys = 7})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("given 7 keys")));
  EXPECT_OK(attention.Forward(invocation, MakeInputs({.keys = kTokens + 3})).status());
}

TEST(SparseAttention, RefusesAPairMask) {
  SparseAttention attention("attention", {.top_k = 4});
  Invocation invocation;
  invocation.SetPairMask(std::make_shared<const PairMask>([](int64_t, int64_t, int64_t) { return true; }));
  const auto out = attention.Forward(invocation, MakeInputs({}));
  EXPECT_THAT(out.status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("PairMask")));
}

TEST(SparseAttention, DoesNotAttendAcrossDocuments) {
  SparseAttention attention("attention", {.top_k = 4});
  const auto parts = std::make_shared<SequenceParts>();
  parts->parts = {{{0, 0, 10}, {1, 0, 13}}};
  const Tensors inputs = MakeInputs({.batch = 1});
  const PassResult together = RunPass(attention, inputs, {}, parts);
  Doubles apart;
  double loss = 0.0;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 10}, {10, 13}}) {
    Tensors document;
    for (const Tensor& input : inputs)
      document.push_back(Tensor::Borrow(input.view().Slice(1, first, count)).Copy());
    const PassResult result = RunPass(attention, document, {});
    apart.insert(apart.end(), result.out.begin(), result.out.end());
    loss += result.pass.loss;
  }
  EXPECT_THAT(together.out, Pointwise(DoubleNear(1e-6), apart));
  EXPECT_NEAR(together.pass.loss, loss, 1e-5);
}

TEST(SparseAttention, AcceptsZeroTokens) {
  for (const bool warm_up : {false, true}) {
    SparseAttention attention("attention");
    const PassResult result = RunPass(attention, MakeInputs({.tokens = 0, .keys = 0}),
                                      {.warm_up = warm_up, .loss_factor = 1.0F, .mass_stride = 1});
    EXPECT_EQ(result.pass.loss, 0.0);
    EXPECT_EQ(result.pass.queries, 0);
    EXPECT_EQ(result.gradients.size(), 6U);
  }
}

TEST(SparseAttention, AllocatesResultsWithItsResultAllocators) {
  SparseAttention attention("attention");
  int outputs = 0;
  int gradients = 0;
  const auto counting = [](int& count) {
    return [&count](DType dtype, Shape shape) -> absl::StatusOr<Tensor> {
      ++count;
      return Tensor::Empty(dtype, std::move(shape));
    };
  };
  attention.SetResultAllocators({counting(outputs), counting(gradients)});
  RunPass(attention, MakeInputs({}), {});
  EXPECT_EQ(outputs, 1);
  EXPECT_EQ(gradients, 6);
}

// The indexer alone can be trained.
TEST(SparseAttention, TakesAnUndefinedGradientForZero) {
  for (const bool warm_up : {false, true}) {
    SparseAttention attention("attention", {.top_k = 5});
    const auto gradients_with = [&](const Tensor& dout) {
      Invocation invocation;
      IndexerPassOf(invocation) = {.warm_up = warm_up, .loss_factor = 0.5F};
      EXPECT_OK(attention.Forward(invocation, MakeInputs({})));
      const Tensors gradients = attention.Backward(invocation, {dout}).value();
      std::vector<Doubles> values;
      for (const Tensor& gradient : gradients) values.push_back(ToDoubleValues(gradient.view()));
      return values;
    };
    const Sizes s;
    const std::vector<Doubles> gradients = gradients_with(Tensor());
    EXPECT_EQ(gradients,
              gradients_with(Tensor::Zeros(DType::kF32, {s.batch, s.tokens, s.heads, s.head_dim})));
    EXPECT_TRUE(AllZero(gradients[SparseAttention::kQ]));
    EXPECT_FALSE(AllZero(gradients[SparseAttention::kIndexQ]));
  }
}

TEST(SparseAttention, RejectsAGradientThatIsNotContiguous) {
  SparseAttention attention("attention", {.top_k = 5});
  Invocation invocation;
  ASSERT_OK(attention.Forward(invocation, MakeInputs({.batch = 1})));
  const Tensor memory = TestTensor(DType::kF32, {1, kTokens, 6, 4}, 9);
  const Tensor dout = memory.Window(memory.view().Permute({0, 1, 3, 2}));
  EXPECT_THAT(attention.Backward(invocation, {dout}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "attention: the gradient of output 0, of shape [1, 23, 4, 6], is not contiguous; pass "
                       "its Copy()"));
  EXPECT_OK(attention.Backward(invocation, {dout.Copy()}));
}

TEST(SparseAttention, RejectsInvalidInputsAndNamesTheReason) {
  const auto message_of = [](const SparseAttentionOptions& options, const Tensors& inputs) {
    SparseAttention attention("block.attention", options);
    Invocation invocation;
    const absl::Status status = attention.Forward(invocation, inputs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("block.attention"));
    return std::string(status.message());
  };
  const auto with = [](size_t which, Shape shape, DType dtype = DType::kF32) {
    Tensors inputs = MakeInputs({});
    inputs[which] = Tensor::Zeros(dtype, std::move(shape));
    return inputs;
  };
  EXPECT_THAT(message_of({.top_k = 0}, MakeInputs({})), HasSubstr("top_k of 0"));
  EXPECT_THAT(message_of({}, {}), HasSubstr("three outputs of the indexer"));
  EXPECT_THAT(message_of({}, with(0, {2, 23, 24})), HasSubstr("four dims"));
  EXPECT_THAT(message_of({}, with(0, {2, 23, 4, 6}, DType::kBF16)), HasSubstr("one dtype"));
  Tensors doubles = MakeInputs({});
  for (Tensor& input : doubles) input = Tensor::Zeros(DType::kF64, input.shape());
  EXPECT_THAT(message_of({}, doubles), HasSubstr("f32, bf16 or f16"));
  EXPECT_THAT(message_of({}, with(5, {1, 23, 3})), HasSubstr("batch sizes"));
  EXPECT_THAT(message_of({}, with(2, {2, 22, 2, 6})), HasSubstr("as many tokens"));
  EXPECT_THAT(message_of({}, with(3, {2, 22, 3, 4})), HasSubstr("as many tokens"));
  EXPECT_THAT(message_of({}, with(0, {2, 23, 3, 6})), HasSubstr("divide the number of heads"));
  EXPECT_THAT(message_of({}, with(0, {2, 23, 4, 5})), HasSubstr("same head_dim"));
  EXPECT_THAT(message_of({}, with(4, {2, 23, 2, 4})), HasSubstr("one head"));
  EXPECT_THAT(message_of({}, with(5, {2, 23, 2})), HasSubstr("every index head needs a weight"));
}

}  // namespace
}  // namespace weft::testing
