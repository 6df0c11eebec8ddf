#include "weft/train/hf_config.h"

#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/files/json.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "tests/train/config/hf_config_json.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(HfConfig, ReadsTheSizes) {
  const LlamaConfig config = ParsedHfConfig(ValidHfConfig());
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
  Json json = ValidHfConfig();
  for (const char* key :
       {"num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "hidden_act"}) {
    json.erase(key);
  }
  json["head_dim"] = 32;
  const LlamaConfig config = ParsedHfConfig(json);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.norm_eps, 1e-6F);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(HfConfig, NamesTheKeyOfAnUnsupportedValue) {
  const std::pair<const char*, Json> cases[] = {
      {"model_type", "phi3"},     {"hidden_act", "gelu"},   {"mlp_bias", true},
      {"attention_dropout", 0.1}, {"sliding_window", 4096}, {"quantization_config", {{"bits", 4}}}};
  for (const auto& [key, value] : cases) {
    const absl::Status status = HfErrorWith(key, value);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("'dir/config.json': ", key, " is ")));
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const absl::Status status = HfErrorWith(key, {{"rope_type", "mrope"}, {"factor", 2.0}});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(key, ".rope_type is 'mrope'")));
  }
}

TEST(HfConfig, FillsInTheDefaultsOfEachArchitecture) {
  Json json = ValidHfConfig();
  for (const char* key :
       {"num_key_value_heads", "max_position_embeddings", "tie_word_embeddings", "hidden_act"}) {
    json.erase(key);
  }
  json["num_attention_heads"] = 32;
  json["model_type"] = "mistral";
  LlamaConfig config = ParsedHfConfig(json);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.traits, (DecoderTraits{.window = 4096}));
  json["sliding_window"] = nullptr;
  EXPECT_EQ(ParsedHfConfig(json).traits, DecoderTraits{});
  json["model_type"] = "qwen2";
  EXPECT_EQ(ParsedHfConfig(json).traits, (DecoderTraits{.qkv_bias = true}));
  json["model_type"] = "qwen3";
  config = ParsedHfConfig(json);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.traits, (DecoderTraits{.qk_norm = true}));
  json["attention_bias"] = true;
  EXPECT_EQ(ParsedHfConfig(json).traits,
            (DecoderTraits{.qkv_bias = true, .output_bias = true, .qk_norm = true}));
  json["model_type"] = "gemma";
  json["attention_bias"] = false;
  config = ParsedHfConfig(json);
  EXPECT_EQ(config.kv_heads, 16);
  EXPECT_TRUE(config.tie_word_embeddings);
  const DecoderTraits gemma{
      .activation = GateActivation::kGeluTanh, .embedding_scale = 8.0F, .norm_offset = 1.0F};
  EXPECT_EQ(config.traits, gemma);
  json["hidden_act"] = "gelu";  // The tanh approximation, in a Gemma.
  EXPECT_EQ(ParsedHfConfig(json).traits, gemma);
}

TEST(HfConfig, ReadsTheLayersOfAWindow) {
  Json json = ValidHfConfig();
  json["model_type"] = "qwen2";
  json["sliding_window"] = 64;
  json["max_window_layers"] = 2;
  EXPECT_FALSE(ParsedHfConfig(json).traits.window.has_value());
  json["use_sliding_window"] = true;
  LlamaConfig config = ParsedHfConfig(json);
  EXPECT_EQ(config.MaskOf(1), AttentionMask{});
  EXPECT_EQ(config.MaskOf(2), (AttentionMask{.causal = true, .keys_before = 63}));
  json["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(ParsedHfConfig(json).traits.first_window_layer, 1);
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("layer_types is"));
  json["layer_types"] = {"full_attention"};
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("a type for each of the 3 layers"));
  json["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  json["use_sliding_window"] = false;
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("use_sliding_window is not true"));
  json["model_type"] = "mistral";
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("layer_types is"));
  json.erase("layer_types");
  json["sliding_window"] = 1;
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("must have at least 2 keys"));
}

TEST(HfConfig, NamesTheKeyThatIsMissingOrWrong) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
    Json json = ValidHfConfig();
    json.erase(key);
    EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr(absl::StrCat(key, " is missing")));
    for (const Json& value : {Json(0), Json(-4), Json("64"), Json(1.5)}) {
      EXPECT_THAT(std::string(HfErrorWith(key, value).message()),
                  HasSubstr(absl::StrCat(key, " is ", JsonText(value))));
    }
  }
  EXPECT_THAT(std::string(HfErrorWith("num_key_value_heads", 3).message()),
              HasSubstr("does not divide num_attention_heads 4"));
  EXPECT_THAT(std::string(HfErrorWith("head_dim", 15).message()), HasSubstr("head_dim is 15"));
  EXPECT_THAT(std::string(HfErrorWith("rms_norm_eps", "x").message()), HasSubstr("rms_norm_eps is"));
  EXPECT_THAT(std::string(HfErrorWith("rope_scaling", {{"rope_type", "llama3"}}).message()),
              HasSubstr("factor is missing"));
  EXPECT_THAT(std::string(HfErrorWith("rope_scaling", "x").message()),
              HasSubstr("rope_scaling has \"x\" where an object must be"));
}

TEST(HfConfig, NamesTheKeyOfASizeThatNoModelHas) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "intermediate_size"}) {
    EXPECT_THAT(std::string(HfErrorWith(key, kHuge).message()),
                HasSubstr(absl::StrCat("dir/config.json': ", key,
                                       " is 1099511627776, but it must be a whole number from 1 to")));
  }
  Json wide = ValidHfConfig();
  wide["hidden_size"] = wide["intermediate_size"] = 1 << 24;
  wide["num_hidden_layers"] = 1 << 16;
  EXPECT_THAT(std::string(HfErrorOf(wide).message()), HasSubstr("parameters"));
  Json heads = ValidHfConfig();
  heads["num_attention_heads"] = 128;
  EXPECT_TRUE(absl::IsDataLoss(HfErrorOf(heads))) << HfErrorOf(heads);
}

TEST(HfConfig, RefusesNumbersThatAreNotFiniteOrPositiveAsFloats) {
  for (const double value : {1e300, 1e-300, -1.0, 0.0}) {
    EXPECT_THAT(std::string(HfErrorWith("rms_norm_eps", value).message()), HasSubstr("rms_norm_eps is"));
    EXPECT_THAT(std::string(HfErrorWith("rope_theta", value).message()), HasSubstr("rope_theta is"));
    Json rope = Llama3RopeJson();
    rope["factor"] = value;
    EXPECT_THAT(std::string(HfErrorWith("rope_scaling", rope).message()), HasSubstr("factor is"));
  }
  Json rope = Llama3RopeJson();
  rope["high_freq_factor"] = 0.5;
  EXPECT_TRUE(absl::IsDataLoss(HfErrorWith("rope_scaling", rope)));
}

TEST(HfConfig, BoundsNestingAndSizeOfItsText) {
  const auto nested = [](const char* key, int levels) {
    std::string text = JsonText(ValidHfConfig());
    text.pop_back();
    return absl::StrCat(text, ",\"", key, "\":", std::string(levels, '['), std::string(levels, ']'), "}");
  };
  EXPECT_TRUE(ParseHfConfig(nested("unused", 20), "c").ok());
  for (const char* key : {"unused", "sliding_window", "rms_norm_eps"}) {
    EXPECT_THAT(std::string(ParseHfConfig(nested(key, 200'000), "c").status().message()),
                HasSubstr("'c': has more than 32 levels"));
  }
  EXPECT_THAT(std::string(ParseHfConfig(std::string(2 << 20, ' '), "c").status().message()),
              HasSubstr("has 2097152 bytes"));
  Json many = ValidHfConfig();
  many["unused"] = std::vector<int>(30'000);
  EXPECT_THAT(std::string(HfErrorOf(many).message()), HasSubstr("more than 20000 values"));
}

TEST(HfConfig, QuotesTheStartOfALongValue) {
  const std::string message(HfErrorWith("hidden_act", std::string(100'000, 'x')).message());
  EXPECT_LT(message.size(), 250);
  EXPECT_THAT(message, HasSubstr("hidden_act is \"xxx"));
}

TEST(HfConfig, DoesNotWaitForAFifoAndDoesNotReadALargeFile) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadHfConfig(folder.str()).status().message()), HasSubstr("FIFO"));
  std::filesystem::remove(folder / "config.json");
  folder.Write("config.json", "{}");
  std::filesystem::resize_file(folder / "config.json", uint64_t{1} << 40);
  EXPECT_THAT(std::string(ReadHfConfig(folder.str()).status().message()), HasSubstr("1099511627776 bytes"));
}

TEST(HfConfig, SaysThatAModelOfTheHubIsNotDownloaded) {
  EXPECT_THAT(ReadHfConfig("owner/model-7b").status(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("there is no folder 'owner/model-7b'"),
                                                          HasSubstr("hf download NAME --local-dir DIR"))));
  const TempFolder folder;
  EXPECT_THAT(ReadHfConfig(folder.str()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot open")));
}

TEST(HfConfig, NamesNoTokensOfBytesForANewModel) {
  const Json written = ParseJson(FormatHfConfig(ParsedHfConfig(ValidHfConfig()), ""));
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    ASSERT_TRUE(written.contains(key));
    EXPECT_TRUE(written[key].is_null());
  }
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
  Json json = ValidHfConfig();
  json["rope_scaling"] = Llama3RopeJson();
  json["head_dim"] = 24;
  const LlamaConfig config = ParsedHfConfig(json);
  const std::string first = FormatHfConfig(config, "");
  EXPECT_EQ(FormatHfConfig(ParsedHfConfig(ParseJson(first)), ""), first);
}

TEST(HfConfig, KeepsOtherKeysOfTheSource) {
  Json json = ValidHfConfig();
  json["bos_token_id"] = 7;
  const Json written = ParseJson(FormatHfConfig(ParsedHfConfig(json), JsonText(json)));
  EXPECT_EQ(written["bos_token_id"], 7);
  EXPECT_EQ(written["dtype"], "float32");
  EXPECT_FALSE(written.contains("torch_dtype"));
}

std::string WithF32(std::string_view text) {
  const absl::StatusOr<std::string> written = SetHfDtype(text, "config.json", DType::kF32);
  EXPECT_TRUE(written.ok()) << written.status();
  return written.value_or("");
}

TEST(HfConfig, SetsTheDtypeAndNoOtherByteOfAnyModelsText) {
  const char* text = R"({
  "time_step_limit": [0.0, Infinity], "floor" : -Infinity,
  "quantity": {"dtype": "int8", "torch_dtype": NaN},
  "note": "NaN, \"dtype\": \\", "size": 123456789012345678901234567890, "dtype" : "bfloat16",
  "text_config": {"dtype": "float16"}
}
)";
  const std::string old = R"("dtype" : "bfloat16")";
  const std::string expected = absl::StrReplaceAll(text, {{old, R"("dtype": "float32")"}});
  EXPECT_EQ(WithF32(text), expected);
  EXPECT_EQ(WithF32(absl::StrReplaceAll(text, {{old, R"("torch_dtype":"bfloat16")"}})), expected);
  EXPECT_EQ(WithF32(expected), expected);
}

TEST(HfConfig, SetsOneDtypeWhereverTheTextHasIt) {
  EXPECT_EQ(WithF32("{}"), R"({"dtype": "float32"})");
  EXPECT_EQ(WithF32("{ }\n"), "{\"dtype\": \"float32\" }\n");
  EXPECT_EQ(WithF32("{\n  \"a\": NaN\n}"), "{\n  \"a\": NaN,\n  \"dtype\": \"float32\"\n}");
  EXPECT_EQ(WithF32(R"({"dtype":null})"), R"({"dtype": "float32"})");
  EXPECT_EQ(WithF32(R"({"dtype": "float16", "a": [1, 2], "torch_dtype": "float16"})"),
            R"({"dtype": "float32", "a": [1, 2]})");
  EXPECT_EQ(WithF32(R"({"a": "dtype", "torch_dtype": "float16", "dtype": "float16", "dtypes": 1})"),
            R"({"a": "dtype", "dtype": "float32", "dtypes": 1})");
  std::string labels = R"({"0": "dtype")";  // As an image classifier of 40,000 classes.
  for (int i = 1; i < 40'000; ++i) absl::StrAppend(&labels, ", \"", i, "\": \"label\"");
  EXPECT_EQ(WithF32(labels + "}"), labels + R"(, "dtype": "float32"})");
}

TEST(HfConfig, NamesAFileWithoutAnObjectForTheDtype) {
  for (const char* text : {"", "[]", "{", "}", "{\"a\": 1", "{\"a\": {}", "{\"a\": \"}", "{1, 2}",
                           "{\"a\": 1]}", "{\"a\": 1,}", "{} {}"}) {
    const absl::Status status = SetHfDtype(text, "dir/config.json", DType::kF32).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'dir/config.json' is not a JSON object")) << text;
  }
}

TEST(IndexerConfig, ReadsWhatItWrites) {
  const SparseAttentionConfig config{64, 2, 16};
  EXPECT_EQ(*ParseIndexerConfig(FormatIndexerConfig(config), "i.json"), config);
  // The keys of DeepSeek-V3.2's config.json; others are ignored.
  EXPECT_EQ(*ParseIndexerConfig(
                R"({"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "dim": 7168})", "i.json"),
            (SparseAttentionConfig{2048, 64, 128}));
}

TEST(IndexerConfig, NamesKeysThatAreMissingOrWrong) {
  const auto error = [](std::string_view text) {
    const absl::Status status = ParseIndexerConfig(text, "i.json").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("[]"), HasSubstr("'i.json' is not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("'i.json': index_n_heads is missing"));
  EXPECT_THAT(error(R"({"index_n_heads": 4, "index_head_dim": 7, "index_topk": 8})"),
              HasSubstr("index_head_dim is 7, but rotary embedding needs an even size"));
  EXPECT_THAT(error(R"({"index_n_heads": -4, "index_head_dim": 8, "index_topk": 8})"),
              HasSubstr("index_n_heads is -4, but it must be a whole number from 1 to"));
}

}  // namespace
}  // namespace weft
