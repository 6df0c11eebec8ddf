#include "weft/nn/sparse/lightning_indexer.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/materialize.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

constexpr int64_t kDim = 10;

std::vector<float> Frequencies(const SparseAttentionConfig& config) {
  return RopeFrequencies(config.rope_dim(), 100.0, std::nullopt);
}

LightningIndexer MakeIndexer(const SparseAttentionConfig& config) {
  return {"self_attn.indexer", kDim, config, std::make_shared<RopeTable>(Frequencies(config)), {}};
}

TEST(SparseAttentionConfig, RotatesAnEvenNumberOfAboutHalfTheElements) {
  const auto rope_dim = [](int64_t index_dim) {
    return SparseAttentionConfig{.index_dim = index_dim}.rope_dim();
  };
  EXPECT_EQ(rope_dim(2), 2);
  EXPECT_EQ(rope_dim(4), 2);
  EXPECT_EQ(rope_dim(6), 2);
  EXPECT_EQ(rope_dim(32), 16);
}

TEST(LightningIndexer, HasGradientsThatMatchFiniteDifferences) {
  for (const SparseAttentionConfig& config : {SparseAttentionConfig{.index_heads = 3, .index_dim = 8},
                                              SparseAttentionConfig{.index_heads = 1, .index_dim = 6}}) {
    for (const GradientCheckOptions& options :
         {GradientCheckOptions{.tolerance = 1e-4},
          GradientCheckOptions{.dtype = DType::kBF16, .tolerance = 0x1p-4},
          GradientCheckOptions{.dtype = DType::kF16, .tolerance = 0x1p-7}}) {
      LightningIndexer indexer = MakeIndexer(config);
      const int64_t heads = config.index_heads;
      const int64_t index_dim = config.index_dim;
      CheckGradients(
          indexer, {TestTensor(options.dtype, {2, 5, kDim}, 1)},
          [&](const Values& v) -> Values {
            const auto rope = [&](const Doubles& x, int64_t count) {
              return oracle::PartialRope(x, 5, count, index_dim, Frequencies(config));
            };
            Doubles weights = oracle::Linear(v[0], v[3], kDim, heads);
            for (double& weight : weights) weight /= std::sqrt(static_cast<double>(heads * index_dim));
            return {rope(oracle::Linear(v[0], v[1], kDim, heads * index_dim), heads),
                    rope(oracle::LayerNorm(oracle::Linear(v[0], v[2], kDim, index_dim), v[4], v[5], 1e-6), 1),
                    weights};
          },
          options);
    }
  }
}

TEST(LightningIndexer, ReturnsNoGradientOfItsInput) {
  LightningIndexer indexer = MakeIndexer({.index_heads = 2, .index_dim = 4});
  const MaterializedParameters memory(indexer, 1, DType::kF32, DType::kF32);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors outputs,
                       indexer.Forward(invocation, {TestTensor(DType::kF32, {1, 3, kDim}, 1)}));
  EXPECT_EQ(outputs[0].shape(), (Shape{1, 3, 2, 4}));
  EXPECT_EQ(outputs[1].shape(), (Shape{1, 3, 1, 4}));
  EXPECT_EQ(outputs[2].shape(), (Shape{1, 3, 2}));
  ASSERT_OK_AND_ASSIGN(const Tensors gradients, indexer.Backward(invocation, outputs));
  ASSERT_EQ(gradients.size(), 1U);
  EXPECT_FALSE(gradients[0].defined());
}

TEST(LightningIndexer, RejectsInputsOfAnotherNumberOfDims) {
  LightningIndexer indexer = MakeIndexer({.index_heads = 2, .index_dim = 4});
  const MaterializedParameters memory(indexer, 1, DType::kF32, DType::kF32);
  const auto expect = [&](const Tensors& inputs, const char* message) {
    Invocation invocation;
    EXPECT_THAT(indexer.Forward(invocation, inputs),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  for (const Shape& shape : {Shape{kDim}, Shape{3, kDim}, Shape{1, 2, 3, kDim}}) {
    expect({TestTensor(DType::kF32, shape, 1)}, "self_attn.indexer: input has the shape [");
  }
  expect({}, "self_attn.indexer: the number of inputs is 0, the module takes 1");
}

TEST(LightningIndexer, RejectsGradientsBeforeItOverwritesThem) {
  LightningIndexer indexer = MakeIndexer({.index_heads = 2, .index_dim = 4});
  const MaterializedParameters memory(indexer, 1, DType::kF32, DType::kF32);
  Invocation invocation;
  ASSERT_OK(indexer.Forward(invocation, {TestTensor(DType::kF32, {1, 3, kDim}, 1)}));
  const auto gradients = [] {
    return Tensors{TestTensor(DType::kF32, {1, 3, 2, 4}, 1), TestTensor(DType::kF32, {1, 3, 1, 4}, 2),
                   TestTensor(DType::kF32, {1, 3, 2}, 3)};
  };
  const Tensors given = gradients();
  const auto expect = [&](const Tensors& wrong, const char* message) {
    EXPECT_THAT(indexer.Backward(invocation, wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect({given[0], given[1]}, "self_attn.indexer: the number of gradients is 2, that of the outputs 3");
  expect({Tensor(), given[1], given[2]},
         "self_attn.indexer: the gradient of output 0 is an undefined tensor");
  const Tensor columns = TestTensor(DType::kF32, {1, 2, 3}, 3);
  expect({given[0], given[1], columns.Window(columns.view().Permute({0, 2, 1}))},
         "self_attn.indexer: the gradient of output 2, of shape [1, 3, 2], is not contiguous");
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(testing::ToDoubleValues(given[i].view()), testing::ToDoubleValues(gradients()[i].view()));
  }
  EXPECT_OK(indexer.Backward(invocation, given));
}

TEST(LightningIndexer, DoesNotOverwriteAGradientThatHasAReader) {
  LightningIndexer indexer = MakeIndexer({.index_heads = 2, .index_dim = 4});
  const MaterializedParameters memory(indexer, 1, DType::kF32, DType::kF32);
  const auto gradients = [] {
    return Tensors{TestTensor(DType::kF32, {1, 3, 2, 4}, 1), TestTensor(DType::kF32, {1, 3, 1, 4}, 2),
                   TestTensor(DType::kF32, {1, 3, 2}, 3)};
  };
  const Tensors given = gradients();
  const std::string use = "a gradient that is added to another";
  Invocation invocation;
  for (const Tensor& gradient : given) invocation.AddReader(gradient, &use);
  ASSERT_OK(indexer.Forward(invocation, {TestTensor(DType::kF32, {1, 3, kDim}, 1)}));
  ASSERT_OK(indexer.Backward(invocation, given));
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(testing::ToDoubleValues(given[i].view()), testing::ToDoubleValues(gradients()[i].view()));
  }
}

TEST(LightningIndexer, RefusesToScaleWeightsThatHaveAReader) {
  LightningIndexer indexer = MakeIndexer({.index_heads = 2, .index_dim = 4});
  const MaterializedParameters memory(indexer, 1, DType::kF32, DType::kF32);
  const std::string use = "a tensor that a peer reads";
  indexer.children()[0]->AddForwardPostHook([&use](Module&, Invocation& invocation, Tensors& outputs) {
    invocation.AddReader(outputs[2], &use);
    return absl::OkStatus();
  });
  Invocation invocation;
  EXPECT_THAT(indexer.Forward(invocation, {TestTensor(DType::kF32, {1, 3, kDim}, 1)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "self_attn.indexer would overwrite " + use));
}

TEST(LightningIndexer, NamesItsParameters) {
  LightningIndexer indexer = MakeIndexer({});
  std::vector<std::string> names;
  for (const auto& parameter : indexer.AllParameters()) {
    names.push_back(parameter->name);
    EXPECT_TRUE(IsIndexerParameter(*parameter));
  }
  EXPECT_THAT(names, ElementsAre("self_attn.indexer.wq.weight", "self_attn.indexer.wk.weight",
                                 "self_attn.indexer.weights_proj.weight", "self_attn.indexer.k_norm.weight",
                                 "self_attn.indexer.k_norm.bias"));
  Parameter other;
  other.name = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_FALSE(IsIndexerParameter(other));
}

}  // namespace
}  // namespace weft
