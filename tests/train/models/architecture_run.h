// Fixture of runs of a model of each architecture over ranks that are threads, against reference figures of
// transformers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/train/files/json.h"
#include "tests/support/reference_hash.h"
#include "tests/train/train_run.h"
#include "weft/nn/llama.h"
#include "weft/train/hf_config.h"
#include "weft/train/safetensors.h"

namespace weft {

// Token ids below `vocab_size` in the format .u16.
inline std::string Tokens(const std::string& name, int64_t count, uint32_t vocab_size) {
  std::string bytes;
  for (const uint32_t word : Hashed(name, count)) {
    const auto id = static_cast<uint16_t>(word % vocab_size);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  return bytes;
}

class ArchitectureRun : public TrainRun {
 protected:
  static constexpr Mesh kOne = {1, 1};
  static constexpr Mesh kMeshes[] = {kOne, {1, 2}, {2, 2}, {1, 1, 2}};

  static Json Reference(const std::string& file) {
    return ParseJson(ReadFile(absl::StrCat(WEFT_TEST_DATA "/", file)));
  }

  // Writes the model's folder and the data, and sets the flags of the reference.
  void Prepare(const std::string& name) {
    expected_ = Reference("architectures.json")["cases"][name];
    const Json training = Reference("architectures.json")["training"];
    const std::string text = JsonText(expected_["config"]);
    config_.model = {};
    config_.model.hf_model = folder_ / name;
    folder_.Write(name + "/config.json", text);
    ASSERT_OK_AND_ASSIGN(const LlamaConfig model, ParseHfConfig(text, "config.json"));
    WriteWeights(model);
    const int64_t sequence = training["seq"];
    const int64_t steps = training["steps"];
    const int64_t batch = training["batch"];
    const auto vocabulary = static_cast<uint32_t>(model.vocab_size);
    const auto write_tokens = [&](const std::string& file, const std::string& source, int64_t count) {
      return folder_.Write(file, Tokens(source, count, vocabulary));
    };
    config_.data.paths = {write_tokens("tokens.u16", "tokens", steps * batch * sequence + 1)};
    config_.eval.paths = {write_tokens("eval.u16", "eval tokens", sequence + 1)};
    config_.data.seq_len = sequence;
    config_.data.batch_size = batch;
    config_.data.shuffle = false;
    config_.optimizer.steps = steps;
    config_.optimizer.lr = training["lr"];
    config_.optimizer.beta1 = training["beta1"];
    config_.optimizer.beta2 = training["beta2"];
    config_.optimizer.eps = training["eps"];
    config_.optimizer.weight_decay = training["weight_decay"];
    config_.optimizer.clip_grad_norm = training["clip"];
    config_.optimizer.warmup_steps = 0;
  }

  void WriteWeights(const LlamaConfig& config) {
    const double norm_center = 1.0 - static_cast<double>(config.traits.norm_offset);
    ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
    const auto parameters = model->AllParameters();
    int64_t elements = 0;
    for (const auto& parameter : parameters) elements += parameter->elements();
    EXPECT_EQ(elements, config.ParameterCount());
    WriteTensors(
        config_.model.hf_model + "/model.safetensors", parameters, 0.3,
        [&](const std::string& name) { return name.find("norm") == std::string::npos ? 0.0 : norm_center; });
  }

  // Writes uniform values within `width` of each parameter's center, by the hash of its name.
  template <typename Center>
  static void WriteTensors(const std::string& path, const std::vector<std::shared_ptr<Parameter>>& parameters,
                           double width, Center center) {
    std::vector<SafetensorsLayout::Tensor> tensors;
    for (const auto& parameter : parameters) tensors.push_back({parameter->name, parameter->shape});
    const SafetensorsLayout layout(tensors);
    ASSERT_OK(SafetensorsWriter::Create(path, layout));
    ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::Open(path, layout));
    for (const auto& [name, shape] : tensors) {
      std::vector<float> values;
      for (const uint32_t word : Hashed(name, ElementCount(shape))) {
        values.push_back(static_cast<float>(word * 0x1p-32 * 2 * width - width + center(name)));
      }
      ASSERT_OK(writer.Write(name, 0, values));
    }
    ASSERT_OK(writer.Close());
    ASSERT_OK(SafetensorsWriter::Commit(path));
  }

  // Losses and gradient norms of the reference.
  void ExpectFigures(const Result& result) {
    ASSERT_EQ(result.steps.size(), expected_["losses"].size());
    for (size_t i = 0; i < result.steps.size(); ++i) {
      EXPECT_NEAR(result.steps[i].loss / expected_["losses"][i].get<double>(), 1, 1e-4);
      EXPECT_NEAR(result.steps[i].grad_norm / expected_["grad_norms"][i].get<double>(), 1, 1e-4);
    }
    ASSERT_TRUE(result.steps.back().eval_loss.has_value());
    EXPECT_NEAR(*result.steps.back().eval_loss / expected_["eval_loss"].get<double>(), 1, 1e-4);
  }

  void ExpectFinalWeights(const std::string& exported, const std::string& stem = "model") {
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(exported, stem));
    EXPECT_EQ(reader.entries().size(), expected_["final_weights"].size());
    for (const auto& [name, values] : expected_["final_weights"].items()) {
      ASSERT_TRUE(reader.entries().contains(name)) << name;
      const int64_t elements = ElementCount(reader.entries().at(name).shape);
      for (size_t i = 0; i < 2; ++i) {
        float value = 0;
        ASSERT_OK(reader.Read(name, i == 0 ? 0 : elements / 2, absl::MakeSpan(&value, 1)));
        EXPECT_NEAR(value, values[i].get<float>(), 1e-4) << name;
      }
    }
  }

  // Expects an export to be read as the model that it came from.
  void ExpectSameConfiguration(const std::string& exported) {
    ASSERT_OK_AND_ASSIGN(const std::string text, ReadHfConfigText(exported));
    const Json written = ParseJson(text);
    EXPECT_EQ(written["model_type"], expected_["config"]["model_type"]);
    EXPECT_EQ(written["architectures"], expected_["config"]["architectures"]);
    ASSERT_OK_AND_ASSIGN(const LlamaConfig model, ReadHfConfig(exported));
    ASSERT_OK_AND_ASSIGN(const LlamaConfig source, ReadHfConfig(config_.model.hf_model));
    EXPECT_EQ(model.traits, source.traits);
    EXPECT_EQ(model.rope_scaling, source.rope_scaling);
    EXPECT_EQ(model.head_dim, source.head_dim);
    EXPECT_EQ(model.ParameterCount(), source.ParameterCount());
  }

  Json expected_;
};

}  // namespace weft
