#include "weft/train/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Valid() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 128},
          {"hidden_size", 64},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 96},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

Json Llama3Rope() {
  return {{"rope_type", "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

LlamaConfig Parsed(const Json& json) {
  const auto config = ParseHfConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(LlamaConfig{});
}

absl::Status ErrorOf(const Json& json) { return ParseHfConfig(json.dump(), "dir/config.json").status(); }

absl::Status ErrorWith(const char* key, const Json& value) {
  Json json = Valid();
  json[key] = value;
  return ErrorOf(json);
}

TEST(HfConfig, ReadsTheSizes) {
  const LlamaConfig config = Parsed(Valid());
  EXPECT_EQ(config.vocab_size, 128);
  EXPECT_EQ(config.dim, 64);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.ffn_dim, 96);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_FALSE(config.rope_scaling.has_value());
}

TEST(HfConfig, FillsInTheDefaultsOfTransformers) {
  Json json = Valid();
  for (const char* key :
       {"num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "hidden_act"}) {
    json.erase(key);
  }
  json["head_dim"] = 32;
  const LlamaConfig config = Parsed(json);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.norm_eps, 1e-6F);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(HfConfig, ReadsRopeOfBothGenerations) {
  Json older = Valid();
  older["rope_scaling"] = Llama3Rope();
  Json oldest = Valid();
  oldest["rope_scaling"] = Llama3Rope();
  oldest["rope_scaling"]["type"] = oldest["rope_scaling"]["rope_type"];
  oldest["rope_scaling"].erase("rope_type");
  Json newer = Valid();
  newer.erase("rope_theta");
  newer["rope_parameters"] = Llama3Rope();
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  for (const Json& json : {older, oldest, newer}) {
    const LlamaConfig config = Parsed(json);
    EXPECT_EQ(config.rope_theta, 500000.0);
    ASSERT_TRUE(config.rope_scaling.has_value());
    EXPECT_EQ(config.rope_scaling->factor, 32.0);
    EXPECT_EQ(config.rope_scaling->low_freq_factor, 1.0);
    EXPECT_EQ(config.rope_scaling->high_freq_factor, 4.0);
    EXPECT_EQ(config.rope_scaling->original_max_positions, 8192);
  }
}

TEST(HfConfig, NamesTheKeyOfAnUnsupportedValue) {
  const std::pair<const char*, Json> cases[] = {{"model_type", "qwen2"},
                                                {"hidden_act", "gelu"},
                                                {"attention_bias", true},
                                                {"mlp_bias", true},
                                                {"attention_dropout", 0.1},
                                                {"sliding_window", 4096},
                                                {"quantization_config", {{"bits", 4}}}};
  for (const auto& [key, value] : cases) {
    const absl::Status status = ErrorWith(key, value);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("'dir/config.json': ", key, " is ")));
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const absl::Status status = ErrorWith(key, {{"rope_type", "yarn"}, {"factor", 2.0}});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(key, ".rope_type is 'yarn'")));
  }
}

TEST(HfConfig, NamesTheKeyThatIsMissingOrWrong) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
    Json json = Valid();
    json.erase(key);
    EXPECT_THAT(std::string(ErrorOf(json).message()), HasSubstr(absl::StrCat(key, " is missing")));
    for (const Json& value : {Json(0), Json(-4), Json("64"), Json(1.5)}) {
      EXPECT_THAT(std::string(ErrorWith(key, value).message()),
                  HasSubstr(absl::StrCat(key, " is ", value.dump())));
    }
  }
  EXPECT_THAT(std::string(ErrorWith("num_key_value_heads", 3).message()),
              HasSubstr("does not divide num_attention_heads 4"));
  EXPECT_THAT(std::string(ErrorWith("head_dim", 15).message()), HasSubstr("head_dim is 15"));
  EXPECT_THAT(std::string(ErrorWith("rms_norm_eps", "x").message()), HasSubstr("rms_norm_eps is"));
  EXPECT_THAT(std::string(ErrorWith("rope_scaling", {{"rope_type", "llama3"}}).message()),
              HasSubstr("factor is missing"));
  EXPECT_THAT(std::string(ErrorWith("rope_scaling", "x").message()),
              HasSubstr("rope_scaling is not an object"));
}

TEST(HfConfig, RefusesTextThatIsNotAJsonObject) {
  for (const char* text : {"", "[]", "{", "nonsense"}) {
    EXPECT_THAT(std::string(ParseHfConfig(text, "c").status().message()), HasSubstr("not a JSON object"))
        << text;
  }
}

TEST(HfConfig, ReportsAFolderWithoutConfig) {
  const TempFolder folder;
  EXPECT_TRUE(absl::IsNotFound(ReadHfConfig(folder.str()).status()));
}

TEST(HfConfig, WritesTheConfigurationThatItRead) {
  Json json = Valid();
  json["rope_scaling"] = Llama3Rope();
  json["head_dim"] = 24;
  const LlamaConfig config = Parsed(json);
  const std::string first = FormatHfConfig(config, "");
  EXPECT_EQ(FormatHfConfig(Parsed(Json::parse(first)), ""), first);
}

TEST(HfConfig, WritesTheKeysOfBothGenerations) {
  Json json = Valid();
  json["rope_scaling"] = Llama3Rope();
  const Json written = Json::parse(FormatHfConfig(Parsed(json), ""));
  EXPECT_EQ(written["model_type"], "llama");
  EXPECT_EQ(written["dtype"], "float32");
  EXPECT_EQ(written["rope_theta"], 500000.0);
  EXPECT_EQ(written["rope_parameters"]["rope_type"], "llama3");
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], 500000.0);
  EXPECT_EQ(written["rope_scaling"]["factor"], 32.0);
  json.erase("rope_scaling");
  const Json plain = Json::parse(FormatHfConfig(Parsed(json), ""));
  EXPECT_EQ(plain["rope_parameters"]["rope_type"], "default");
  EXPECT_FALSE(plain.contains("rope_scaling"));
}

TEST(HfConfig, KeepsOtherKeysOfTheSource) {
  Json json = Valid();
  json["bos_token_id"] = 7;
  const Json written = Json::parse(FormatHfConfig(Parsed(json), json.dump()));
  EXPECT_EQ(written["bos_token_id"], 7);
  EXPECT_EQ(written["dtype"], "float32");
  EXPECT_FALSE(written.contains("torch_dtype"));
}

}  // namespace
}  // namespace weft
