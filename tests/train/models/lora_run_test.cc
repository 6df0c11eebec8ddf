// Runs with low-rank adapters, against peft, transformers and torch. tools/reference/lora_reference.py wrote
// the reference figures.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "src/train/files/json.h"
#include "tests/train/models/architecture_run.h"
#include "weft/train/checkpoint.h"
#include "weft/train/generate.h"
#include "weft/train/peft_adapter.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

class LoraRun : public ArchitectureRun {
 protected:
  // Writes model, data and the adapters that the reference starts from.
  void PrepareAdapter(const std::string& name) {
    Prepare(name);
    expected_ = Reference("lora.json")["cases"][name];
    const std::string text = JsonText(expected_["adapter_config"]);
    folder_.Write("adapter/adapter_config.json", text);
    config_.lora.adapter = folder_ / "adapter";
    ASSERT_OK_AND_ASSIGN(const PeftAdapter adapter, ParsePeftAdapter(text, "adapter_config.json"));
    ASSERT_OK_AND_ASSIGN(const LlamaConfig config, ReadHfConfig(config_.model.hf_model));
    ASSERT_OK_AND_ASSIGN(const auto model, LlamaModel::Create(config));
    ASSERT_OK(AddLora(*model, adapter.lora).status());
    auto parameters = model->AllParameters();
    std::erase_if(parameters, [](const auto& parameter) { return !IsLoraParameter(*parameter); });
    WriteTensors(folder_ / "adapter/adapter_model.safetensors", parameters, 0.1,
                 [](const std::string&) { return 0.0; });
  }

  Json WrittenConfig(const std::string& folder) {
    return ParseJson(ReadFile(folder + "/adapter_config.json"));
  }

  // Tokens that are sampled from a model of a folder.
  std::vector<int32_t> Generated(const std::string& model, const std::string& adapter) {
    GenerateConfig config;
    config.hf_folder = model;
    config.lora_adapter = adapter;
    config.prompt_tokens = "1,2,3";
    config.max_new_tokens = 40;
    config.sampling.temperature = 1;
    std::vector<int32_t> tokens;
    EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GenerateReport report, Generate(bootstrap, config, {}));
      if (bootstrap.rank() == 0) tokens = report.tokens;
      return absl::OkStatus();
    }));
    return tokens;
  }
};

TEST_F(LoraRun, FollowsPeftOnEveryMesh) {
  const Json cases = Reference("lora.json")["cases"];
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, reference] : cases.items()) {
    PrepareAdapter(name);
    for (const Mesh& mesh : kMeshes) {
      SCOPED_TRACE(absl::StrCat(name, " ", mesh.replicate, "x", mesh.shard, "x", mesh.context));
      config_.output.export_folder = folder_ / absl::StrCat(name, "-of-", mesh.ranks());
      ExpectFigures(Run(mesh));
      ExpectFinalWeights(config_.output.export_folder, "adapter_model");
    }
    Json expected = expected_["adapter_config"];
    expected["base_model_name_or_path"] = config_.model.hf_model;
    EXPECT_EQ(WrittenConfig(config_.output.export_folder), expected);
  }
}

TEST_F(LoraRun, FollowsPeftWithAccumulationRecomputationAndASharedOptimizer) {
  PrepareAdapter("gemma");
  config_.data.grad_accum = 2;
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  config_.parallel.shard_optimizer_over_replicas = true;
  ExpectFigures(Run({2, 1}));
  config_.parallel.shard_optimizer_over_replicas = false;
  config_.parallel.zero_copy = false;
  ExpectFigures(Run({1, 2}));
}

TEST_F(LoraRun, FollowsPeftInBf16Closely) {
  PrepareAdapter("qwen2");
  config_.parallel.param_dtype = DType::kBF16;
  const Result result = Run({1, 2});
  for (size_t i = 0; i < result.steps.size(); ++i) {
    EXPECT_NEAR(result.steps[i].loss / expected_["losses"][i].get<double>(), 1, 5e-3);
    EXPECT_NEAR(result.steps[i].grad_norm / expected_["grad_norms"][i].get<double>(), 1, 5e-2);
  }
}

TEST_F(LoraRun, SavesAdaptersAloneAndResumesOnAnotherMesh) {
  PrepareAdapter("qwen2");
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.checkpoint.interval = 4;
  Run({1, 2});
  const std::string saved = absl::StrCat(config_.checkpoint.folder, "/", CheckpointName(4));
  EXPECT_FALSE(std::filesystem::exists(saved + "/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(saved + "/config.json"));
  EXPECT_EQ(WrittenConfig(saved)["r"], expected_["adapter_config"]["r"]);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved));
  ASSERT_OK(checkpoint.ExportHf(folder_ / "from-checkpoint"));
  EXPECT_OK(SafetensorsReader::Open(folder_ / "from-checkpoint", "adapter_model").status());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "from-checkpoint/adapter_optimizer.safetensors"));

  config_.checkpoint = {};
  config_.checkpoint.resume = saved;
  config_.output.export_folder = folder_ / "resumed";
  const Result resumed = Run({2, 2});
  ASSERT_EQ(resumed.steps.size(), 6);
  for (size_t i = 0; i < resumed.steps.size(); ++i) {
    EXPECT_NEAR(resumed.steps[i].loss / expected_["losses"][i + 4].get<double>(), 1, 1e-4);
  }
  ExpectFinalWeights(folder_ / "resumed", "adapter_model");
  config_.lora = {.rank = 2};
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("--lora-rank is 2, but the checkpoint has 4")));
}

TEST_F(LoraRun, RefusesToGoOnWithANewModelInPlaceOfThatOfTheAdapters) {
  PrepareAdapter("qwen2");
  config_.lora = {.rank = 2};
  config_.checkpoint.folder = folder_ / "checkpoints";
  Run(kOne);
  config_.checkpoint.resume = "auto";
  config_.model.hf_model += "/config.json";
  EXPECT_THAT(RunError(1),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("weights of --hf-model is not given, but the checkpoint has 26 tensors")));
}

TEST_F(LoraRun, ExportsTheModelWithItsAdaptersMerged) {
  for (const bool zero_copy : {true, false}) {
    PrepareAdapter("qwen3");
    config_.parallel.zero_copy = zero_copy;
    config_.output.export_folder = folder_ / "adapters";
    Run({1, 2});
    // An export of the model replaces one of adapters.
    config_.output.export_folder = folder_ / "merged";
    std::filesystem::copy(folder_ / "adapters", folder_ / "merged",
                          std::filesystem::copy_options::overwrite_existing);
    config_.output.export_merged = true;
    Run({1, 2});
    EXPECT_FALSE(std::filesystem::exists(folder_ / "merged/adapter_config.json"));
    EXPECT_EQ(Generated(folder_ / "merged", ""), Generated(config_.model.hf_model, folder_ / "adapters"));
    EXPECT_NE(Generated(folder_ / "merged", ""), Generated(config_.model.hf_model, ""));

    config_.model.hf_model = folder_ / "merged";
    config_.lora = {};
    config_.output = {};
    config_.optimizer.steps = 0;
    EXPECT_NEAR(*Run(kOne).report.eval_loss / expected_["eval_loss"].get<double>(), 1, 1e-4);
  }
}

TEST_F(LoraRun, RefusesToExportAdaptersOverTheWeightsOfAModel) {
  PrepareAdapter("qwen3");
  const std::string model = config_.model.hf_model;
  config_.checkpoint.folder = folder_ / "checkpoints";
  Run(kOne);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                       Checkpoint::Open(absl::StrCat(config_.checkpoint.folder, "/", CheckpointName(10))));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has the weights of a model"));
  EXPECT_THAT(checkpoint.ExportHf(model), refused);
  std::filesystem::copy(model, folder_ / "copy");
  config_.checkpoint = {};
  config_.output.export_folder = folder_ / "copy";
  EXPECT_THAT(RunError(1), refused);
  EXPECT_TRUE(std::filesystem::exists(model + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "copy/model.safetensors"));
}

TEST_F(LoraRun, RefusesToExportAModelOverAdapters) {
  PrepareAdapter("qwen3");
  config_.output.export_folder = folder_ / "adapters";
  Run(kOne);
  Run(kOne);  // Adapters replace those of an earlier export.
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has the weights of adapters"));
  config_.output.export_merged = true;
  EXPECT_THAT(RunError(1), refused);
  config_.output = {};
  config_.lora = {};
  config_.checkpoint.folder = folder_ / "checkpoints";
  Run(kOne);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                       Checkpoint::Open(absl::StrCat(config_.checkpoint.folder, "/", CheckpointName(10))));
  EXPECT_THAT(checkpoint.ExportHf(folder_ / "adapters"), refused);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "adapters/adapter_model.safetensors"));
}

TEST_F(LoraRun, MergesAdaptersThatReplicasUpdateInParts) {
  PrepareAdapter("qwen3");
  config_.optimizer.clip_grad_norm = 0;
  config_.output.export_merged = true;
  config_.output.export_folder = folder_ / "whole";
  Run({2, 2});
  config_.parallel.shard_optimizer_over_replicas = true;
  for (const bool in_backward : {false, true}) {
    config_.optimizer.in_backward = in_backward;
    config_.output.export_folder = folder_ / absl::StrCat("parts-", in_backward);
    Run({2, 2});
    EXPECT_TRUE(ReadFile(absl::StrCat(config_.output.export_folder, "/model.safetensors")) ==
                ReadFile(folder_ / "whole/model.safetensors"));
  }
}

TEST_F(LoraRun, StartsNewAdaptersAsPeftDoes) {
  PrepareAdapter("qwen3");
  config_.lora = {};
  config_.optimizer.lr = 0;
  config_.optimizer.steps = 1;
  const double loss_of_model = Run(kOne).report.loss;
  config_.lora = {.rank = 3};
  config_.output.export_folder = folder_ / "new";
  EXPECT_EQ(Run({1, 2}).report.loss, Run(kOne).report.loss);
  EXPECT_EQ(Run(kOne).report.loss, loss_of_model);
  const Json config = WrittenConfig(folder_ / "new");
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["target_modules"], Json({"q_proj", "v_proj"}));
  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader,
                       SafetensorsReader::Open(folder_ / "new", "adapter_model"));
  const float bound = 1 / std::sqrt(32.0F);  // Of in_features.
  float largest = 0;
  for (const auto& [name, entry] : reader.entries()) {
    std::vector<float> values(static_cast<size_t>(ElementCount(entry.shape)));
    ASSERT_OK(reader.Read(name, 0, absl::MakeSpan(values)));
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    if (name.find("lora_B") != std::string::npos) {
      EXPECT_EQ(*low, 0.0F);
      EXPECT_EQ(*high, 0.0F);
    } else {
      largest = std::max({largest, -*low, *high});
    }
  }
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.95F * bound);
}

TEST_F(LoraRun, TrainsAdaptersOfANewModelWithALossMask) {
  config_.data.loss_mask = true;
  folder_.Write("text.txt.mask", std::string(2000, '\0') + std::string(2000, '\1'));
  config_.lora = {.rank = 2, .targets = "all-linear"};
  ExpectLossesOfOneRank({{1, 2}, {2, 1}});
}

TEST_F(LoraRun, DropsTheSameElementsOnEveryMeshAndInAResumedRun) {
  config_.lora = {.rank = 2, .targets = "all-linear"};
  config_.optimizer.lr = 0.1;
  const double without = Run(kOne).report.loss;
  config_.lora.dropout = 0;
  EXPECT_EQ(Run(kOne).report.loss, without);
  config_.lora.dropout = 0.5;
  const Result one = Run(kOne);
  EXPECT_GT(std::abs(one.report.loss / without - 1), 1e-3);
  config_.checkpoint.folder = folder_ / "checkpoints";
  config_.checkpoint.interval = 1;
  const Result four = Run({1, 4});
  ExpectSameLosses(four, one);
  config_.checkpoint = {};
  config_.checkpoint.resume = absl::StrCat(folder_ / "checkpoints", "/", CheckpointName(1));
  EXPECT_EQ(Run({1, 4}).report.weights_hash, four.report.weights_hash);
  config_.checkpoint = {};
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  for (const Mesh& mesh : {Mesh{2, 2}, Mesh{4, 1}}) {
    EXPECT_EQ(Run(mesh).report.weights_hash, four.report.weights_hash);
  }
  config_.data.grad_accum = 2;
  for (const Mesh& mesh : {Mesh{1, 2}, Mesh{1, 1, 2}, Mesh{2, 1, 2}}) ExpectSameLosses(Run(mesh), one);
}

TEST_F(LoraRun, DropsTheSameElementsOfPackedDocumentsOnEveryMesh) {
  config_.lora = {.rank = 2, .dropout = 0.5};
  config_.optimizer.lr = 0.1;
  config_.data.document_separator = 'e';
  const Result one = Run(kOne);
  for (const Mesh& mesh : {Mesh{1, 4}, Mesh{1, 1, 2}, Mesh{2, 1, 2}}) ExpectSameLosses(Run(mesh), one);
}

TEST_F(LoraRun, ReadsAndWritesTheDropoutOfPeft) {
  PrepareAdapter("qwen2");
  Json config = expected_["adapter_config"];
  config["lora_dropout"] = 0.25;
  folder_.Write("adapter/adapter_config.json", JsonText(config));
  config_.output.export_folder = folder_ / "out";
  const double loss = Run({1, 2}).report.loss;
  EXPECT_GT(std::abs(loss / expected_["losses"].back().get<double>() - 1), 1e-4);
  EXPECT_EQ(WrittenConfig(folder_ / "out")["lora_dropout"], 0.25);
  config_.lora = {.rank = 2, .dropout = 0.125};
  Run({1, 2});
  EXPECT_EQ(WrittenConfig(folder_ / "out")["lora_dropout"], 0.125);
}

TEST_F(LoraRun, RefusesAdaptersThatDoNotFit) {
  PrepareAdapter("qwen2");
  const auto expect = [&](absl::StatusCode code, const std::string& text) {
    EXPECT_THAT(RunError(1), StatusIs(code, HasSubstr(text)));
  };
  const auto write = [&](const Json& changes) {
    Json config = expected_["adapter_config"];
    config.update(changes);
    folder_.Write("adapter/adapter_config.json", JsonText(config));
  };
  write({{"r", 5}});
  expect(absl::StatusCode::kDataLoss, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  write({{"target_modules", {"q_proj"}}});
  expect(absl::StatusCode::kDataLoss, "which target_modules and this model do not have");
  write({{"target_modules", {"q_proj", "fc1"}}});
  expect(absl::StatusCode::kInvalidArgument, "adapter_config.json: 'fc1' is no linear layer of this model; ");
  write({{"lora_dropout", 1}});
  expect(absl::StatusCode::kInvalidArgument,
         "the dropout of adapters is 1, but must be at least 0 and below 1");
  write(Json::object());
  config_.output.export_folder = folder_ / "adapter";
  expect(absl::StatusCode::kInvalidArgument, "is a file that --lora-adapter reads");
  config_.lora = {.rank = 2, .targets = "q_proj,x"};
  expect(absl::StatusCode::kInvalidArgument, "--lora-targets: 'x' is no linear layer");
  config_.model.hf_model = folder_ / "adapter";
  expect(absl::StatusCode::kInvalidArgument, "holds adapters: name the folder of their model");
}

TEST(PeftAdapter, NamesTheKeyOfAnUnsupportedFeature) {
  const Json plain = {
      {"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 12.5}, {"target_modules", {"q_proj", "up_proj"}}};
  ASSERT_OK_AND_ASSIGN(const PeftAdapter adapter, ParsePeftAdapter(JsonText(plain), "a.json"));
  EXPECT_EQ(adapter.lora.rank, 8);
  EXPECT_EQ(adapter.lora.scaling(), 12.5F / 8);
  EXPECT_THAT(adapter.lora.targets, ElementsAre("q_proj", "up_proj"));
  const auto error_of = [&](const char* key, const Json& value) {
    Json changed = plain;
    changed[key] = value;
    return ParsePeftAdapter(JsonText(changed), "a.json").status();
  };
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"use_dora", true},
                                                 {"use_rslora", true},
                                                 {"modules_to_save", {"lm_head"}},
                                                 {"bias", "all"},
                                                 {"rank_pattern", {{"q_proj", 4}}},
                                                 {"alpha_pattern", {{"q_proj", 4}}},
                                                 {"fan_in_fan_out", true},
                                                 {"layers_to_transform", {0}},
                                                 {"init_lora_weights", "pissa"},
                                                 {"peft_type", "IA3"},
                                                 {"target_modules", ".*_proj"},
                                                 {"task_type", "SEQ_CLS"},
                                                 {"a_feature_of_tomorrow", 1}}) {
    EXPECT_THAT(error_of(key, value),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(absl::StrCat("'a.json': ", key))));
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"r", 0},
                                                                            {"lora_alpha", -1},
                                                                            {"target_modules", {1}},
                                                                            {"lora_dropout", "x"},
                                                                            {"peft_type", nullptr}}) {
    EXPECT_THAT(error_of(key, value), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(key)));
  }
  EXPECT_OK(error_of("use_dora", false));
  EXPECT_OK(error_of("init_lora_weights", "gaussian"));
}

}  // namespace
}  // namespace weft
