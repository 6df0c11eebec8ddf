// Whole runs of each architecture and rope type, on several meshes, against transformers and torch.
// tools/reference/architecture_reference.py wrote the reference figures.
#include "tests/train/models/architecture_run.h"

#include <cmath>
#include <filesystem>
#include <string>

#include "src/train/files/json.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

TEST_F(ArchitectureRun, FollowsTransformersOnEveryMesh) {
  const Json cases = Reference("architectures.json")["cases"];
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, reference] : cases.items()) {
    Prepare(name);
    for (const Mesh& mesh : kMeshes) {
      SCOPED_TRACE(absl::StrCat(name, " ", mesh.replicate, "x", mesh.shard, "x", mesh.context));
      config_.output.export_folder = mesh.ranks() == 1 ? folder_ / (name + "-exported") : "";
      ExpectFigures(Run(mesh));
      if (mesh.ranks() > 1) continue;
      ExpectFinalWeights(config_.output.export_folder);
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
      ExpectFigures(Run({1, 1, 4}));
    }
  }
  context.load_balance.reset();
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kHybrid}) {
    SCOPED_TRACE(ToAbsl(Name(scheme)));
    context.scheme = scheme;
    ExpectFigures(Run({1, 1, 4}));
  }
}

TEST_F(ArchitectureRun, RecomputesActivationsWithHeadNormsAndBiases) {
  Prepare("qwen3_bias_and_window");
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  ExpectFigures(Run({1, 2, 2}));
}

TEST_F(ArchitectureRun, StartsANewModelFromConfigJsonAlone) {
  for (const char* name : {"qwen3", "gemma"}) {
    SCOPED_TRACE(name);
    Prepare(name);
    std::filesystem::remove(config_.model.hf_model + "/model.safetensors");
    folder_.Write(std::string(name) + "/model.safetensors.index.json", R"({"weight_map": {"a": "b"}})");
    EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kNotFound,
                                      AllOf(HasSubstr("download it again"), Not(HasSubstr("a new model")))));
    std::filesystem::remove(config_.model.hf_model + "/model.safetensors.index.json");
    EXPECT_THAT(RunError(1),
                StatusIs(absl::StatusCode::kNotFound,
                         HasSubstr("To train a new model of this configuration, give --hf-model " +
                                   config_.model.hf_model + "/config.json")));
    config_.model.hf_model += "/config.json";
    config_.output.export_folder = folder_ / (std::string(name) + "-new");
    EXPECT_THAT(Printed(kOne, NodeMap::OneNode(1)), HasSubstr("new weights by --seed"));
    EXPECT_EQ(ParseJson(*ReadHfConfigText(config_.output.export_folder))["model_type"],
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
    return ParseJson(*ReadHfConfigText(config_.output.export_folder))[key];
  };
  folder_.Write("qwen3/generation_config.json", R"({"bos_token_id": 7, "eos_token_id": [8, 9]})");
  EXPECT_EQ(exported("eos_token_id"), Json({8, 9}));
  folder_.Write("qwen3/generation_config.json", R"({"bos_token_id": "x"})");
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bos_token_id is \"x\"")));
  for (const char* id : {"2147483647", "[8, -9]", "9223372036854775808"}) {
    folder_.Write("qwen3/generation_config.json", absl::StrCat(R"({"eos_token_id": )", id, "}"));
    EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("eos_token_id is "))) << id;
  }
  const std::string settings = "qwen3/tokenizer_config.json";
  folder_.Write(settings, R"({"bos_token": "<s>", "added_tokens_decoder": {"-5": {"content": "<s>"}}})");
  EXPECT_THAT(RunError(1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bos_token is '<s>'")));
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
  EXPECT_EQ(ParseJson(*ReadHfConfigText(folder_ / "out"))["dtype"], "bfloat16");
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
