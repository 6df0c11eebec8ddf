// Whole runs of each architecture and rope type, on several meshes, against transformers and torch.
// tools/reference/architecture_reference.py wrote the reference figures.
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/reference_hash.h"
#include "tests/train/train_run.h"
#include "weft/nn/llama.h"
#include "weft/train/hf_config.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr Mesh kOne = {1, 1};
constexpr Mesh kMeshes[] = {kOne, {1, 2}, {2, 2}, {1, 1, 2}};

const Json& Reference() {
  static const Json* const reference = [] {
    std::ifstream file(WEFT_TEST_DATA "/architectures.json");
    return new Json(Json::parse(file));
  }();
  return *reference;
}

// Token ids below `vocab_size` in the format .u16.
std::string Tokens(const std::string& name, int64_t count, uint32_t vocab_size) {
  std::string bytes;
  for (const uint32_t word : Hashed(name, count)) {
    const auto id = static_cast<uint16_t>(word % vocab_size);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  return bytes;
}

class ArchitectureRun : public TrainRun {
 protected:
  // Writes the model's folder and the data, and sets the flags of the reference.
  void Prepare(const std::string& name) {
    expected_ = Reference()["cases"][name];
    const Json& training = Reference()["training"];
    const std::string text = expected_["config"].dump();
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
    std::vector<SafetensorsLayout::Tensor> tensors;
    for (const auto& parameter : model->AllParameters())
      tensors.push_back({parameter->name, parameter->shape});
    int64_t elements = 0;
    for (const auto& tensor : tensors) elements += ElementCount(tensor.shape);
    EXPECT_EQ(elements, config.ParameterCount());
    const SafetensorsLayout layout(tensors);
    const std::string path = config_.model.hf_model + "/model.safetensors";
    ASSERT_OK(SafetensorsWriter::Create(path, layout));
    ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::Open(path, layout));
    for (const auto& [name, shape] : tensors) {
      const double center = name.find("norm") == std::string::npos ? 0.0 : norm_center;
      std::vector<float> values;
      for (const uint32_t word : Hashed(name, ElementCount(shape))) {
        values.push_back(static_cast<float>(word * 0x1p-32 * 0.6 - 0.3 + center));
      }
      ASSERT_OK(writer.Write(name, 0, values));
    }
    ASSERT_OK(writer.Close());
    ASSERT_OK(SafetensorsWriter::Commit(path));
  }

  void ExpectFiguresOfTransformers(const Result& result) {
    ASSERT_EQ(result.steps.size(), expected_["losses"].size());
    for (size_t i = 0; i < result.steps.size(); ++i) {
      EXPECT_NEAR(result.steps[i].loss / expected_["losses"][i].get<double>(), 1, 1e-4);
      EXPECT_NEAR(result.steps[i].grad_norm / expected_["grad_norms"][i].get<double>(), 1, 1e-4);
    }
    ASSERT_TRUE(result.steps.back().eval_loss.has_value());
    EXPECT_NEAR(*result.steps.back().eval_loss / expected_["eval_loss"].get<double>(), 1, 1e-4);
  }

  void ExpectWeightsOfTransformers(const std::string& exported) {
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(exported));
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
    const Json written = Json::parse(text);
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

TEST_F(ArchitectureRun, FollowsTransformersOnEveryMesh) {
  for (const auto& [name, reference] : Reference()["cases"].items()) {
    Prepare(name);
    for (const Mesh& mesh : kMeshes) {
      SCOPED_TRACE(absl::StrCat(name, " ", mesh.replicate, "x", mesh.shard, "x", mesh.context));
      config_.output.export_folder = mesh.ranks() == 1 ? folder_ / (name + "-exported") : "";
      ExpectFiguresOfTransformers(Run(mesh));
      if (mesh.ranks() > 1) continue;
      ExpectWeightsOfTransformers(config_.output.export_folder);
      ExpectSameConfiguration(config_.output.export_folder);
    }
  }
}

TEST_F(ArchitectureRun, FollowsTransformersWithAWindowInEveryContextScheme) {
  Prepare("qwen2_window_in_one_layer");
  ContextOptions& context = config_.parallel.context;
  for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
    for (const CpScheme scheme : {CpScheme::kGather, CpScheme::kRing}) {
      SCOPED_TRACE(absl::StrCat(ToAbsl(Name(scheme)), " ", ToAbsl(Name(balance))));
      context.scheme = scheme;
      context.load_balance = balance;
      ExpectFiguresOfTransformers(Run({1, 1, 4}));
    }
  }
  context.load_balance.reset();
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kHybrid}) {
    SCOPED_TRACE(ToAbsl(Name(scheme)));
    context.scheme = scheme;
    ExpectFiguresOfTransformers(Run({1, 1, 4}));
  }
}

TEST_F(ArchitectureRun, RecomputesActivationsWithHeadNormsAndBiases) {
  Prepare("qwen3_bias_and_window");
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  ExpectFiguresOfTransformers(Run({1, 2, 2}));
}

TEST_F(ArchitectureRun, StartsANewModelFromConfigJsonAlone) {
  for (const char* name : {"qwen3", "gemma"}) {
    SCOPED_TRACE(name);
    Prepare(name);
    std::filesystem::remove(config_.model.hf_model + "/model.safetensors");
    EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/config.json")));
    config_.model.hf_model += "/config.json";
    config_.output.export_folder = folder_ / (std::string(name) + "-new");
    EXPECT_THAT(Printed(kOne, NodeMap::OneNode(1)), HasSubstr("new weights by --seed"));
    EXPECT_EQ(Json::parse(*ReadHfConfigText(config_.output.export_folder))["model_type"],
              expected_["config"]["model_type"]);
    const Result first = Run(kOne);
    // A model that knows nothing yet.
    EXPECT_NEAR(first.steps[0].loss, std::log(67.0), 0.2);
  }
}

TEST_F(ArchitectureRun, GivesANewModelTheTokensOfItsTokenizer) {
  Prepare("qwen3");
  config_.optimizer.steps = 1;
  const std::string folder = config_.model.hf_model;
  config_.model.hf_model += "/config.json";
  config_.output.export_folder = folder_ / "new";
  const auto exported = [&](const char* key) {
    Run(kOne);
    return Json::parse(*ReadHfConfigText(config_.output.export_folder))[key];
  };
  folder_.Write("qwen3/generation_config.json", R"({"bos_token_id": 7, "eos_token_id": [8, 9]})");
  EXPECT_EQ(exported("eos_token_id"), Json({8, 9}));
  folder_.Write("qwen3/generation_config.json", R"({"bos_token_id": "x"})");
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bos_token_id is \"x\"")));
  const std::string settings = "qwen3/tokenizer_config.json";
  folder_.Write("qwen3/tokenizer.json", R"({"model": {"vocab": {"<a>": 1}, "added_tokens": [{"id": 5}]},
      "added_tokens": [{"id": 3, "content": "<a>"}, {"content": "</a>", "id": 4}], "version": "1"})");
  folder_.Write(settings, R"({"bos_token": null, "eos_token": {"content": "</a>"}})");
  EXPECT_EQ(exported("eos_token_id"), 4);
  EXPECT_TRUE(exported("bos_token_id").is_null());
  folder_.Write(settings, R"({"bos_token": null, "eos_token": "</b>"})");
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("eos_token is '</b>'")));
  // A model with weights keeps the tokens that it was trained with.
  config_.model.hf_model = folder;
  EXPECT_EQ(exported("eos_token_id"), expected_["config"]["eos_token_id"]);
}

TEST_F(ArchitectureRun, ExportsInTheDtypeOfItsFlag) {
  Prepare("mistral");
  config_.optimizer.steps = 1;
  config_.output.export_folder = folder_ / "out";
  config_.output.export_dtype = DType::kBF16;
  Run({1, 2});
  EXPECT_EQ(Json::parse(*ReadHfConfigText(folder_ / "out"))["dtype"], "bfloat16");
  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(folder_ / "out"));
  for (const auto& [name, entry] : reader.entries()) EXPECT_EQ(entry.dtype, "BF16") << name;
}

TEST_F(ArchitectureRun, RefusesSparseAttentionForAModelWithAWindow) {
  Prepare("mistral");
  config_.attention.kind = AttentionKind::kDsa;
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("--attention dsa: cannot be used: the model has an attention "
                                              "window of 7")));
}

}  // namespace
}  // namespace weft
