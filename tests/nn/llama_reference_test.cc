// Test of the whole model, its backward and the optimizer against transformers and torch.
// tools/reference/llama_reference.py wrote the reference figures.
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/reference_hash.h"
#include "weft/core/reproducible_sum.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"
#include "weft/optim/adamw.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr double kRelative = 1e-4;

const Json& Reference() {
  static const Json* const reference = [] {
    std::ifstream file(WEFT_TEST_DATA "/llama_reference.json");
    return new Json(Json::parse(file));
  }();
  return *reference;
}

void FillWeight(const Parameter& parameter) {
  const double center = parameter.name.find("norm") == std::string::npos ? 0.0 : 1.0;
  const std::vector<uint32_t> words = Hashed(parameter.name, parameter.elements());
  for (size_t i = 0; i < words.size(); ++i) {
    parameter.data.As<float>()[i] = static_cast<float>(words[i] * 0x1p-32 * 0.2 - 0.1 + center);
  }
}

LlamaConfig ConfigOf(const Json& json) {
  LlamaConfig config;
  config.vocab_size = json["vocab_size"];
  config.dim = json["dim"];
  config.layers = json["layers"];
  config.heads = json["heads"];
  config.kv_heads = json["kv_heads"];
  config.head_dim = json["head_dim"];
  config.ffn_dim = json["ffn_dim"];
  config.norm_eps = json["norm_eps"];
  config.rope_theta = json["rope_theta"];
  config.tie_word_embeddings = json["tie_word_embeddings"];
  config.max_positions = json["max_positions"];
  if (json.contains("rope_scaling")) {
    const Json& scaling = json["rope_scaling"];
    config.rope_scaling =
        Llama3RopeScaling{scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"],
                          scaling["original_max_position_embeddings"]};
  }
  return config;
}

// Ids and targets of a batch.
Tensors MakeBatch(int64_t index, const Json& training, int64_t vocab_size) {
  const int64_t batch = training["batch"];
  const int64_t seq = training["seq"];
  const std::vector<uint32_t> words = Hashed(absl::StrCat("tokens ", index), batch * (seq + 1));
  const Tensor ids = Tensor::Empty(DType::kI32, {batch, seq});
  const Tensor targets = Tensor::Empty(DType::kI32, {batch, seq});
  for (int64_t row = 0; row < batch; ++row) {
    for (int64_t i = 0; i < seq; ++i) {
      const auto at = static_cast<size_t>(row * (seq + 1) + i);
      ids.As<int32_t>()[row * seq + i] = static_cast<int32_t>(words[at] % vocab_size);
      targets.As<int32_t>()[row * seq + i] = static_cast<int32_t>(words[at + 1] % vocab_size);
    }
  }
  return {ids, targets};
}

double GradientNorm(const std::vector<std::shared_ptr<Parameter>>& parameters) {
  ReproducibleSum sum;
  for (const auto& p : parameters) sum += SumSquares(p->grad.As<float>(), p->elements());
  return TwoNormOf(sum);
}

class LlamaReference : public ::testing::TestWithParam<std::string> {};

TEST_P(LlamaReference, MatchesLossesNormsAndWeightsOfTransformersAndTorch) {
  const Json& expected = Reference()["cases"][GetParam()];
  const Json& training = Reference()["training"];
  auto model = LlamaModel::Create(ConfigOf(expected["config"]));
  ASSERT_TRUE(model.ok()) << model.status();
  const MaterializedParameters memory(**model, /*seed=*/0, DType::kF32, DType::kF32);
  const auto parameters = (*model)->AllParameters();
  std::vector<std::vector<float>> moments;
  for (const auto& parameter : parameters) {
    FillWeight(*parameter);
    moments.emplace_back(static_cast<size_t>(2 * parameter->elements()));
  }
  const AdamWOptions options = {training["lr"], training["beta1"], training["beta2"], training["eps"],
                                training["weight_decay"]};
  const float loss_scale =
      1.0F / static_cast<float>(training["batch"].get<int>() * training["seq"].get<int>());
  for (int64_t step = 0; step < training["steps"].get<int64_t>(); ++step) {
    const auto at = static_cast<size_t>(step);
    Invocation invocation(/*gradients=*/true, loss_scale);
    const auto loss = (*model)->Forward(invocation, MakeBatch(step % training["batches"].get<int64_t>(),
                                                              training, (*model)->config().vocab_size));
    ASSERT_TRUE(loss.ok()) << loss.status();
    const double expected_loss = expected["losses"][at];
    EXPECT_NEAR(*(*loss)[0].As<float>(), expected_loss, kRelative * expected_loss) << "step " << step;

    for (const auto& parameter : parameters) parameter->grad_written = false;
    ASSERT_TRUE((*model)->Backward(invocation, {Tensor::Scalar(1.0F)}).ok());
    EXPECT_TRUE(invocation.empty());
    const double norm = GradientNorm(parameters);
    const double expected_norm = expected["grad_norms"][at];
    EXPECT_NEAR(norm, expected_norm, kRelative * expected_norm) << "step " << step;

    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t elements = parameters[i]->elements();
      AdamWStep({{parameters[i]->data.As<float>(), parameters[i]->grad.As<float>(), moments[i].data(),
                  moments[i].data() + elements, elements}},
                options, step + 1, static_cast<float>(ClipFactor(norm, training["clip"])));
    }
  }
  ASSERT_EQ(parameters.size(), expected["final_weights"].size());
  for (const auto& parameter : parameters) {
    const Json& finals = expected["final_weights"][parameter->name];
    const int64_t elements = parameter->elements();
    const int64_t places[] = {0, elements / 2, elements - 1};
    for (size_t i = 0; i < std::size(places); ++i) {
      const double value = finals[i];
      EXPECT_NEAR(parameter->data.As<float>()[places[i]], value, kRelative * std::max(1.0, std::abs(value)))
          << parameter->name << " at " << places[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaReference,
                         ::testing::Values("multi_query_untied", "multi_head_tied", "grouped_llama3_rope"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace weft
