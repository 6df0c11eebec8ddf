#include "weft/nn/llama.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_llama.h"
#include "weft/nn/materialize.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using ::weft::testing::TinyLlama;

TEST(DecoderBlock, HasGradientsThatMatchFiniteDifferences) {
  const LlamaConfig config = TinyLlama();
  DecoderBlock block("block", config, 0, RopeTables(config));
  CheckGradients(
      block, {TestTensor(DType::kF32, {2, 5, config.dim}, 1)},
      [&](const Values& v) -> Values { return {oracle::DecoderBlock(config, 2, 5, v[0], v.data() + 1)}; },
      {.tolerance = 5e-5, .elements = 60});
}

TEST(LlamaModel, HasGradientsThatMatchFiniteDifferences) {
  for (const bool tied : {false, true}) {
    LlamaConfig config = TinyLlama();
    config.tie_word_embeddings = tied;
    ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
    CheckGradients(*model, {TestIds({2, 5}, config.vocab_size, 1), TestIds({2, 5}, config.vocab_size, 2)},
                   [&](const Values& v) -> Values {
                     return {{oracle::LlamaLoss(config, 2, 5, v[0], v[1], v.data() + 2)}};
                   },
                   {.tolerance = 2e-4, .elements = 20});
  }
}

TEST(LlamaModel, HasTheNamesAndShapesOfHuggingFace) {
  LlamaConfig config = TinyLlama();
  config.layers = 1;
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
  std::vector<std::string> parameters;
  int64_t elements = 0;
  for (const auto& parameter : model->AllParameters()) {
    parameters.push_back(absl::StrCat(parameter->name, " ", ToString(parameter->shape)));
    elements += parameter->elements();
  }
  EXPECT_THAT(
      parameters,
      ElementsAre("model.embed_tokens.weight [13, 10]", "model.layers.0.input_layernorm.weight [10]",
                  "model.layers.0.self_attn.q_proj.weight [24, 10]",
                  "model.layers.0.self_attn.k_proj.weight [12, 10]",
                  "model.layers.0.self_attn.v_proj.weight [12, 10]",
                  "model.layers.0.self_attn.o_proj.weight [10, 24]",
                  "model.layers.0.post_attention_layernorm.weight [10]",
                  "model.layers.0.mlp.gate_proj.weight [7, 10]", "model.layers.0.mlp.up_proj.weight [7, 10]",
                  "model.layers.0.mlp.down_proj.weight [10, 7]", "model.norm.weight [10]",
                  "lm_head.weight [13, 10]"));
  EXPECT_EQ(config.ParameterCount(), elements);
}

TEST(LlamaModel, SharesOneWeightWhenTied) {
  LlamaConfig config = TinyLlama();
  config.tie_word_embeddings = true;
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
  int64_t elements = 0;
  for (const auto& parameter : model->AllParameters()) {
    EXPECT_NE(parameter->name, "lm_head.weight");
    elements += parameter->elements();
  }
  EXPECT_EQ(config.ParameterCount(), elements);
}

TEST(AddLora, FreezesAllParametersButAdapters) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(TinyLlama()));
  LoraOptions options{.rank = 3, .targets = {"layers.1.self_attn.v_proj", "down_proj"}};
  ASSERT_OK_AND_ASSIGN(options, AddLora(*model, options));
  EXPECT_THAT(options.targets, ElementsAre("layers.1.self_attn.v_proj", "down_proj"));
  std::vector<std::string> trained;
  for (const auto& parameter : model->AllParameters()) {
    EXPECT_EQ(parameter->requires_grad, IsLoraParameter(*parameter)) << parameter->name;
    if (parameter->requires_grad) trained.push_back(parameter->name);
  }
  const std::string prefix = "base_model.model.model.layers.";
  EXPECT_THAT(
      trained,
      ElementsAre(prefix + "0.mlp.down_proj.lora_A.weight", prefix + "0.mlp.down_proj.lora_B.weight",
                  prefix + "1.self_attn.v_proj.lora_A.weight", prefix + "1.self_attn.v_proj.lora_B.weight",
                  prefix + "1.mlp.down_proj.lora_A.weight", prefix + "1.mlp.down_proj.lora_B.weight"));
  EXPECT_THAT(AddLora(*model, options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has an adapter already")));
}

TEST(AddLora, NamesTheLinearLayersOfAModel) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(TinyLlama()));
  const auto error_of = [&](const LoraOptions& options) { return AddLora(*model, options).status(); };
  EXPECT_THAT(error_of({.targets = {"q_proj", "proj"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'proj' is no linear layer of this model; there are down_proj, gate_proj, "
                                 "k_proj, o_proj, q_proj, up_proj, v_proj")));
  EXPECT_THAT(error_of({.rank = 0}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank")));
  EXPECT_THAT(error_of({.alpha = 0}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("alpha")));
  EXPECT_THAT(error_of({.targets = {}}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("named")));
  EXPECT_TRUE(model->AllParameters()[0]->requires_grad);  // Nothing was changed.
  ASSERT_OK_AND_ASSIGN(const LoraOptions all, AddLora(*model, {.targets = {LoraOptions::kAllLinear}}));
  EXPECT_THAT(all.targets,
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
}

TEST(LlamaModel, AccumulatesGradientsOverMicrobatches) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(TinyLlama()));
  MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
  const auto parameters = model->AllParameters();
  const Tensor ids = TestIds({4, 6}, 13, 1);
  const Tensor targets = TestIds({4, 6}, 13, 2);
  const auto rows = [](const Tensor& tensor, int64_t first, int64_t count) {
    return Tensor::Borrow(tensor.view().Slice(0, first, count));
  };
  const auto run = [&](int64_t first, int64_t count) {
    Invocation invocation(/*gradients=*/true, 1.0F / 24.0F);
    const auto loss = model->Forward(invocation, {rows(ids, first, count), rows(targets, first, count)});
    EXPECT_OK(model->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    return *(*loss)[0].As<float>();
  };
  const float whole = run(0, 4);
  std::vector<std::vector<float>> expected;
  for (const auto& p : parameters)
    expected.emplace_back(p->grad.As<float>(), p->grad.As<float>() + p->elements());

  memory.ClearGradients();
  EXPECT_NEAR(run(0, 1) + run(1, 3), whole, 1e-6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (size_t j = 0; j < expected[i].size(); ++j) {
      ASSERT_NEAR(parameters[i]->grad.As<float>()[j], expected[i][j], 1e-6)
          << parameters[i]->name << " at " << j;
    }
  }
}

TEST(LlamaModel, ComputesIn16BitsCloseToF32) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(TinyLlama()));
  const auto loss_in = [&](DType dtype) {
    const MaterializedParameters memory(*model, 3, dtype, DType::kF32);
    Invocation invocation(/*gradients=*/true, 1.0F / 10.0F);
    const auto loss = model->Forward(invocation, {TestIds({2, 5}, 13, 1), TestIds({2, 5}, 13, 2)});
    EXPECT_OK(model->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    return *(*loss)[0].As<float>();
  };
  EXPECT_NEAR(loss_in(DType::kBF16), loss_in(DType::kF32), 0.01F);
  EXPECT_NEAR(loss_in(DType::kF16), loss_in(DType::kF32), 0.00125F);
}

TEST(LlamaModel, RejectsInvalidInputs) {
  LlamaConfig config = TinyLlama();
  config.max_positions = 4;
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
  Invocation invocation;
  EXPECT_THAT(model->Forward(invocation, {TestIds({1, 5}, 13, 1), TestIds({1, 5}, 13, 2)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("longer than the model's 4 positions")));
  EXPECT_THAT(model->Forward(invocation, {TestIds({1, 3}, 13, 1), TestIds({3}, 13, 2)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not [1, 3] and [3]")));
}

TEST(LlamaModel, LimitsPositionsRatherThanTokens) {
  LlamaConfig config = TinyLlama();
  config.max_positions = 4;
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
  const MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
  const auto parts = std::make_shared<SequenceParts>();
  Invocation invocation;
  invocation.SetSequence(parts);
  parts->parts = {{{0, 0, 3}, {1, 0, 4}}};
  EXPECT_OK(model->Forward(invocation, {TestIds({1, 7}, 13, 1), TestIds({1, 7}, 13, 2)}).status());
  parts->parts = {{{0, 3, 2}}};
  EXPECT_THAT(model->Forward(invocation, {TestIds({1, 2}, 13, 1), TestIds({1, 2}, 13, 2)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a sequence of 5 tokens")));
}

// With context parallelism a rank may have no token of a short sequence.
TEST(LlamaModel, AcceptsZeroTokens) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(TinyLlama()));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const MaterializedParameters memory(*model, 3, dtype, DType::kF32);
    for (const auto& parameter : model->AllParameters()) {
      std::fill_n(parameter->grad.As<float>(), parameter->elements(), 7.0F);
    }
    Invocation invocation;
    ASSERT_OK_AND_ASSIGN(const Tensors loss,
                         model->Forward(invocation, {TestIds({2, 0}, 13, 1), TestIds({2, 0}, 13, 2)}));
    EXPECT_EQ(*loss[0].As<float>(), 0.0F);
    ASSERT_OK(model->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    EXPECT_TRUE(invocation.empty());
    for (const auto& parameter : model->AllParameters()) {
      for (int64_t i = 0; i < parameter->elements(); ++i) {
        ASSERT_EQ(parameter->grad.As<float>()[i], 0.0F) << parameter->name;
      }
    }
  }
}

TEST(LlamaConfig, NamesTheInvalidField) {
  const auto message_of = [](auto change) {
    LlamaConfig config = TinyLlama();
    change(config);
    return std::string(Validate(config).message());
  };
  EXPECT_OK(Validate(TinyLlama()));
  EXPECT_THAT(message_of([](LlamaConfig& c) { c.layers = 0; }), HasSubstr("layers is 0"));
  EXPECT_THAT(message_of([](LlamaConfig& c) { c.kv_heads = 3; }),
              HasSubstr("kv_heads is 3, which does not divide"));
  EXPECT_THAT(message_of([](LlamaConfig& c) { c.head_dim = 5; }), HasSubstr("head_dim is 5"));
  EXPECT_THAT(message_of([](LlamaConfig& c) { c.rope_theta = 0.0; }), HasSubstr("rope_theta is 0"));
  EXPECT_THAT(message_of([](LlamaConfig& c) {
                c.rope_scaling = Llama3RopeScaling{8.0F, 4.0F, 1.0F, 8192};
              }),
              HasSubstr("rope scaling"));
  EXPECT_THAT(message_of([](LlamaConfig& c) {
                c.rope_scaling = DynamicRopeScaling{2.0F};
                c.sparse_attention = SparseAttentionConfig{.index_dim = 6};
              }),
              HasSubstr("index_dim is 6"));
}

// One pass over tokens [begin, end) of `ids`.
absl::StatusOr<Tensor> LogitsOf(LlamaModel& model, const Tensor& ids, int64_t begin, int64_t end,
                                const std::shared_ptr<KvCache>& cache) {
  Invocation invocation(/*gradients=*/false);
  invocation.SetKvCache(cache);
  invocation.SetSequence(std::make_shared<SequenceParts>(SequenceParts{{{{0, begin, end - begin}}}, 0}));
  const Tensor part = ids.Window(ids.view().Slice(1, begin, end - begin)).Copy();
  WEFT_ASSIGN_OR_RETURN(const Tensors logits, model.Forward(invocation, {part}));
  return logits[0];
}

// All that differs in other architectures, with a window and original positions that seven tokens exceed.
LlamaConfig TinyModelWithAllTraits() {
  LlamaConfig config = TinyLlama();
  config.traits = {.qkv_bias = true,
                   .output_bias = true,
                   .qk_norm = true,
                   .window = 3,
                   .first_window_layer = 1,
                   .activation = GateActivation::kGeluTanh,
                   .embedding_scale = 3.0F,
                   .norm_offset = 1.0F};
  config.rope_scaling =
      YarnRopeScaling{.factor = 4.0F, .attention_factor = 1.2F, .original_max_positions = 4};
  return config;
}

TEST(LlamaModel, GivesTheLogitsOfOnePassInSeveralPassesWithAKvCache) {
  for (const auto& [config, dtype] :
       {std::pair(TinyLlama(), DType::kF32), std::pair(TinyLlama(), DType::kBF16),
        std::pair(TinyModelWithAllTraits(), DType::kF32)}) {
    ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
    const MaterializedParameters memory(*model, 3, dtype, dtype);
    const Tensor ids = TestIds({2, 7}, config.vocab_size, 1);
    const auto cache = std::make_shared<KvCache>(7);
    int64_t begin = 0;
    for (const int64_t end : {3, 4, 5, 7}) {
      ASSERT_OK_AND_ASSIGN(const Tensor cached, LogitsOf(*model, ids, begin, end, cache));
      ASSERT_OK_AND_ASSIGN(const Tensor whole, LogitsOf(*model, ids, 0, end, nullptr));
      ASSERT_EQ(cached.shape(), (Shape{2, config.vocab_size}));
      for (int64_t i = 0; i < cached.elements(); ++i) {
        ASSERT_NEAR(cached.As<float>()[i], whole.As<float>()[i], dtype == DType::kF32 ? 1e-6 : 1e-4)
            << "token " << end << ", logit " << i;
      }
      begin = end;
    }
    EXPECT_EQ(cache->bytes(), 2 * config.layers * 2 * 7 * config.kv_heads * config.head_dim *
                                  static_cast<int64_t>(SizeOf(dtype)));
  }
}

TEST(LlamaModel, RefusesTokensThatDoNotFollowThoseOfTheKvCache) {
  ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(TinyLlama()));
  const MaterializedParameters memory(*model, 3, DType::kF32, DType::kF32);
  const Tensor ids = TestIds({1, 7}, 13, 1);
  const auto cache = std::make_shared<KvCache>(5);
  ASSERT_OK(LogitsOf(*model, ids, 0, 3, cache).status());
  EXPECT_THAT(LogitsOf(*model, ids, 4, 5, cache),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has 3 tokens")));
  EXPECT_THAT(LogitsOf(*model, ids, 3, 6, cache),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("capacity of 5")));
  Invocation invocation;
  invocation.SetKvCache(cache);
  EXPECT_THAT(model->Forward(invocation, {ids, ids}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without")));
}

}  // namespace
}  // namespace weft
