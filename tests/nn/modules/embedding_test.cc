// Embeddings of tokens and of positions.
#include "weft/nn/embedding.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/materialize.h"
#include "weft/nn/position_embedding.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(Embedding, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Embedding embedding("embedding", 11, 6);
    CheckGradients(
        embedding, {TestIds({3, 9}, 11, 1)},
        [](const Values& v) -> Values { return {oracle::Embedding(v[0], v[1], 6)}; }, options);
  }
}

TEST(Embedding, MultipliesRowsAndTheirGradientsByItsScale) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Embedding embedding("embedding", 11, 6, {}, 2.5F);
    CheckGradients(
        embedding, {TestIds({3, 9}, 11, 1)},
        [](const Values& v) -> Values {
          Doubles y = oracle::Embedding(v[0], v[1], 6);
          for (double& value : y) value *= 2.5;
          return {y};
        },
        options);
  }
}

TEST(Embedding, RejectsATokenOutsideTheVocabulary) {
  Embedding embedding("model.embed_tokens", 4, 2);
  const MaterializedParameters memory(embedding, 0, DType::kF32, DType::kF32);
  for (const int32_t wrong : {4, -1}) {
    const Tensor ids = Tensor::Zeros(DType::kI32, {1, 3});
    ids.As<int32_t>()[2] = wrong;
    Invocation invocation;
    EXPECT_THAT(
        embedding.Forward(invocation, {ids}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("token ", wrong, " at position 2 is outside the vocabulary of 4"))));
  }
}

TEST(PositionEmbedding, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    PositionEmbedding positions("wpe", 5, 3);
    CheckGradients(
        positions, {TestTensor(options.dtype, {2, 4, 3}, 1)},
        [](const Values& v) -> Values {
          Doubles y = v[0];
          for (size_t i = 0; i < y.size(); ++i) y[i] += v[1][i % 12];
          return {y};
        },
        options);
  }
}

// Tokens of a shard, in the order of the shard: positions 6 and 7, then 0 and 1.
TEST(PositionEmbedding, FollowsThePositionsOfTheSequence) {
  PositionEmbedding positions("wpe", 8, 3);
  const MaterializedParameters memory(positions, 1, DType::kF32, DType::kF32);
  const Tensor x = Tensor::Zeros(DType::kF32, {1, 4, 3});
  Invocation pass;
  pass.SetSequence(std::make_shared<SequenceParts>(SequenceParts{{{{0, 6, 2}, {0, 0, 2}}, {{0, 2, 4}}}, 0}));
  ASSERT_OK_AND_ASSIGN(const Tensors y, positions.Forward(pass, {x}));
  const auto* table = positions.parameters()[0]->data.As<float>();
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(y[0].As<float>()[i], table[i < 6 ? 18 + i : i - 6]);
  ASSERT_OK(positions.Backward(pass, {TestTensor(DType::kF32, {1, 4, 3}, 2)}));
  const auto* gradient = positions.parameters()[0]->grad.As<float>();
  for (size_t i = 6; i < 18; ++i) EXPECT_EQ(gradient[i], 0.0F);  // Positions of the other rank.
  EXPECT_NE(gradient[0], 0.0F);
  EXPECT_NE(gradient[20], 0.0F);
}

TEST(PositionEmbedding, RejectsASequenceBeyondItsTable) {
  PositionEmbedding positions("transformer.wpe", 4, 3);
  const MaterializedParameters memory(positions, 1, DType::kF32, DType::kF32);
  Invocation pass;
  EXPECT_THAT(positions.Forward(pass, {TestTensor(DType::kF32, {1, 5, 3}, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("transformer.wpe: the sequence has 5 positions, the table 4")));
  EXPECT_THAT(positions.Forward(pass, {TestTensor(DType::kF32, {4, 3}, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the module takes at least 3 dims")));
}

}  // namespace
}  // namespace weft
