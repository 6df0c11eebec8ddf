// Tests of Llama models with sparse attention.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_llama.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::TinyLlama;

LlamaConfig SparseLlama(int64_t top_k) {
  LlamaConfig config = TinyLlama();
  config.sparse_attention = SparseAttentionConfig{top_k, 3, 4};
  return config;
}

struct Step {
  float loss = 0.0F;
  IndexerPass pass;
};

// One forward and backward over a fixed batch.
Step RunStep(LlamaModel& model, MaterializedParameters& memory, const IndexerPass& settings,
             float loss_gradient = 1.0F) {
  memory.ClearGradients();
  Invocation invocation(/*gradients=*/true, 1.0F / 24.0F);
  IndexerPassOf(invocation) = settings;
  const auto loss = model.Forward(invocation, {TestIds({2, 12}, 13, 1), TestIds({2, 12}, 13, 2)});
  EXPECT_OK(loss.status());
  EXPECT_OK(model.Backward(invocation, {Tensor::Scalar(loss_gradient)}).status());
  EXPECT_TRUE(invocation.empty());
  return {*(*loss)[0].As<float>(), IndexerPassOf(invocation)};
}

std::vector<float> GradientOf(const Parameter& parameter) {
  return {parameter.grad.As<float>(), parameter.grad.As<float>() + parameter.elements()};
}

std::vector<std::vector<float>> TrunkGradients(LlamaModel& model) {
  std::vector<std::vector<float>> gradients;
  for (const auto& parameter : model.AllParameters()) {
    if (!IsIndexerParameter(*parameter)) gradients.push_back(GradientOf(*parameter));
  }
  return gradients;
}

bool AnyNonzero(const std::vector<float>& values) {
  return std::any_of(values.begin(), values.end(), [](float value) { return value != 0.0F; });
}

TEST(SparseLlama, AddsAnIndexerToEveryLayer) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(SparseLlama(4)));
  ASSERT_OK_AND_ASSIGN(const auto dense, LlamaModel::Create(TinyLlama()));
  std::vector<std::string> trunk, indexers, expected;
  int64_t elements = 0;
  for (const auto& parameter : model->AllParameters()) {
    (IsIndexerParameter(*parameter) ? indexers : trunk).push_back(parameter->name);
    elements += parameter->elements();
  }
  for (const auto& parameter : dense->AllParameters()) expected.push_back(parameter->name);
  EXPECT_EQ(trunk, expected);
  EXPECT_EQ(indexers.size(), 10U);
  EXPECT_EQ(indexers[0], "model.layers.0.self_attn.indexer.wq.weight");
  EXPECT_EQ(model->config().ParameterCount(), elements);
  const SelfAttention& layer = model->blocks()[1]->self_attention();
  EXPECT_EQ(layer.indexer()->name(), "model.layers.1.self_attn.indexer");
  EXPECT_EQ(layer.sparse_attention()->options().top_k, 4);
  EXPECT_EQ(dense->blocks()[1]->self_attention().indexer(), nullptr);
  EXPECT_EQ(dense->blocks()[1]->self_attention().sparse_attention(), nullptr);
}

TEST(SparseLlama, HasLossAndGradientsOfTheDenseModelIfTopKCoversAllKeys) {
  ASSERT_OK_AND_ASSIGN(const auto dense, LlamaModel::Create(TinyLlama()));
  ASSERT_OK_AND_ASSIGN(const auto sparse, LlamaModel::Create(SparseLlama(100)));
  MaterializedParameters dense_memory(*dense, 3, DType::kF32, DType::kF32);
  MaterializedParameters sparse_memory(*sparse, 3, DType::kF32, DType::kF32);
  const Step expected = RunStep(*dense, dense_memory, {});
  for (const bool warm_up : {false, true}) {
    const Step step = RunStep(*sparse, sparse_memory, {.warm_up = warm_up, .loss_factor = 1.0F});
    EXPECT_NEAR(step.loss, expected.loss, 1e-5F);
    EXPECT_EQ(step.pass.queries, 2 * 24);
    const auto gradients = TrunkGradients(*sparse);
    const auto dense_gradients = TrunkGradients(*dense);
    for (size_t i = 0; i < gradients.size(); ++i) {
      for (size_t j = 0; j < gradients[i].size(); ++j)
        ASSERT_NEAR(gradients[i][j], dense_gradients[i][j], 1e-5F);
    }
  }
}

TEST(SparseLlama, GivesTheTrunkTheSameBitsWhateverTheLossFactor) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(SparseLlama(3)));
  MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
  RunStep(*model, memory, {.loss_factor = 0.0F});
  const auto without = TrunkGradients(*model);
  RunStep(*model, memory, {.loss_factor = 0.25F});
  EXPECT_EQ(TrunkGradients(*model), without);
  for (const auto& parameter : model->AllParameters()) {
    const bool expected = IsIndexerParameter(*parameter) || AnyNonzero(GradientOf(*parameter));
    EXPECT_EQ(AnyNonzero(GradientOf(*parameter)), expected) << parameter->name;
  }
}

TEST(SparseLlama, TrainsOnlyTheIndexersInWarmUpIfTheLossGradientIsZero) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(SparseLlama(3)));
  MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
  RunStep(*model, memory, {.warm_up = true, .loss_factor = 0.25F}, /*loss_gradient=*/0.0F);
  for (const auto& parameter : model->AllParameters()) {
    EXPECT_EQ(AnyNonzero(GradientOf(*parameter)), IsIndexerParameter(*parameter)) << parameter->name;
  }
}

TEST(SparseLlama, CountsLossesOnceWithActivationCheckpointing) {
  for (const bool warm_up : {false, true}) {
    const IndexerPass settings = {.warm_up = warm_up, .loss_factor = 0.25F, .mass_stride = 2};
    ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(SparseLlama(3)));
    MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
    const Step plain = RunStep(*model, memory, settings);
    const auto gradients = TrunkGradients(*model);
    for (DecoderBlock* block : model->blocks()) block->SetActivationCheckpointing(true);
    const Step recomputed = RunStep(*model, memory, settings);
    EXPECT_EQ(recomputed.loss, plain.loss);
    EXPECT_EQ(TrunkGradients(*model), gradients);
    EXPECT_EQ(recomputed.pass.loss, plain.pass.loss);
    EXPECT_EQ(recomputed.pass.queries, plain.pass.queries);
    EXPECT_EQ(recomputed.pass.selected_mass, plain.pass.selected_mass);
    EXPECT_EQ(recomputed.pass.mass_pairs, plain.pass.mass_pairs);
  }
}

TEST(SparseLlama, OverfitsABatchAndItsIndexersLearnTheTarget) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(SparseLlama(3)));
  MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
  for (const auto& parameter : model->AllParameters()) {
    // Larger weights than the usual ones: the model is tiny.
    if (parameter->initializer.kind != Initializer::Kind::kNormal) continue;
    for (int64_t i = 0; i < parameter->elements(); ++i) parameter->data.As<float>()[i] *= 15.0F;
  }
  const IndexerPass settings = {.loss_factor = 1.0F / 48.0F, .mass_stride = 1};
  const Step first = RunStep(*model, memory, settings);
  Step last = first;
  for (int step = 0; step < 300; ++step) {
    for (const auto& parameter : model->AllParameters()) {
      for (int64_t i = 0; i < parameter->elements(); ++i) {
        parameter->data.As<float>()[i] -= 0.3F * parameter->grad.As<float>()[i];
      }
    }
    last = RunStep(*model, memory, settings);
  }
  EXPECT_LT(last.loss, 0.5F * first.loss);
  EXPECT_LT(last.pass.loss, first.pass.loss);
}

TEST(SparseLlama, RunsInBf16CloseToF32) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(SparseLlama(100)));
  const auto step_in = [&](DType dtype) {
    MaterializedParameters memory(*model, 3, dtype, DType::kF32);
    return RunStep(*model, memory, {.loss_factor = 0.25F});
  };
  const Step wide = step_in(DType::kF32);
  const Step narrow = step_in(DType::kBF16);
  EXPECT_NEAR(narrow.loss, wide.loss, 0.02F);
  EXPECT_NEAR(narrow.pass.loss, wide.pass.loss, 0.05 * wide.pass.loss + 1e-3);
}

TEST(SparseLlama, NamesTheInvalidField) {
  const auto message_of = [](const SparseAttentionConfig& sparse) {
    LlamaConfig config = TinyLlama();
    config.sparse_attention = sparse;
    return std::string(Validate(config).message());
  };
  EXPECT_OK(Validate(SparseLlama(4)));
  EXPECT_THAT(message_of({.top_k = 0}), HasSubstr("top_k is 0"));
  EXPECT_THAT(message_of({.index_heads = 0}), HasSubstr("index_heads is 0"));
  EXPECT_THAT(message_of({.index_dim = 0}), HasSubstr("index_dim is 0"));
  EXPECT_THAT(message_of({.index_dim = 5}), HasSubstr("index_dim is 5"));
  EXPECT_THAT(message_of({.index_heads = int64_t{1} << 40}), HasSubstr("index_heads is"));
}

}  // namespace
}  // namespace weft
