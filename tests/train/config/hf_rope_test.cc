// Rotary embeddings in the configurations of Hugging Face models.
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/files/json.h"
#include "tests/train/config/hf_config_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(HfConfig, ReadsRopeOfBothGenerations) {
  Json older = ValidHfConfig();
  older["rope_scaling"] = Llama3RopeJson();
  Json oldest = ValidHfConfig();
  oldest["rope_scaling"] = Llama3RopeJson();
  oldest["rope_scaling"]["type"] = oldest["rope_scaling"]["rope_type"];
  oldest["rope_scaling"].erase("rope_type");
  Json newer = ValidHfConfig();
  newer.erase("rope_theta");
  newer["rope_parameters"] = Llama3RopeJson();
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  for (const Json& json : {older, oldest, newer}) {
    const LlamaConfig config = ParsedHfConfig(json);
    EXPECT_EQ(config.rope_theta, 500000.0);
    ASSERT_TRUE(config.rope_scaling.has_value());
    EXPECT_EQ(std::get<Llama3RopeScaling>(*config.rope_scaling),
              (Llama3RopeScaling{32.0F, 1.0F, 4.0F, 8192}));
  }
}

TEST(HfConfig, ReadsTheFactorsOfRopeTypes) {
  const auto scaling = [](const Json& rope) {
    Json json = ValidHfConfig();
    json["rope_scaling"] = rope;
    const Json written = ParseJson(FormatHfConfig(ParsedHfConfig(json), JsonText(json)));
    EXPECT_EQ(ParsedHfConfig(written).rope_scaling, ParsedHfConfig(json).rope_scaling);
    return *ParsedHfConfig(json).rope_scaling;
  };
  EXPECT_EQ(std::get<LinearRopeScaling>(scaling({{"type", "linear"}, {"factor", 2}})).factor, 2.0F);
  EXPECT_EQ(std::get<DynamicRopeScaling>(scaling({{"type", "dynamic"}, {"factor", 3}})).factor, 3.0F);
  const auto yarn = std::get<YarnRopeScaling>(
      scaling({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 128}}));
  EXPECT_EQ(yarn.original_max_positions, 128);
  EXPECT_FLOAT_EQ(yarn.attention_factor, 1.0F + 0.1F * std::log(4.0F));
  const std::vector<float> factors(8, 1.5F);
  const auto longrope = std::get<LongRopeScaling>(scaling({{"rope_type", "longrope"},
                                                           {"short_factor", factors},
                                                           {"long_factor", factors},
                                                           {"original_max_position_embeddings", 128}}));
  EXPECT_EQ(longrope.long_factors, factors);
  // The ratio of 512 to 128 positions takes the place of a missing factor.
  EXPECT_FLOAT_EQ(longrope.attention_factor, std::sqrt(1.0F + std::log(4.0F) / std::log(128.0F)));
  EXPECT_THAT(
      std::string(
          HfErrorWith("rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1.0}}}).message()),
      HasSubstr("but it must be a list of 8 positive numbers"));
  Json json = ValidHfConfig();
  json["rope_scaling"] = Llama3RopeJson();
  json["original_max_position_embeddings"] = 64;
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("original_max_position_embeddings is 8192"));
}

TEST(HfConfig, LimitsSequencesByTheRopeType) {
  Json json = ValidHfConfig();
  json["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  LlamaConfig config = ParsedHfConfig(json);
  EXPECT_EQ(config.LongestSequence(), 2048);
  EXPECT_EQ(config.PositionLimit(), 512);
  config.rope_sequence = 1000;
  EXPECT_EQ(config.PositionLimit(), 1000);
  const std::vector<float> factors(8, 1.5F);
  json["rope_scaling"] = {{"rope_type", "longrope"},
                          {"short_factor", factors},
                          {"long_factor", factors},
                          {"original_max_position_embeddings", 128}};
  config = ParsedHfConfig(json);
  EXPECT_EQ(config.LongestSequence(), 512);
  EXPECT_EQ(config.PositionLimit(), 128);
  config.rope_sequence = 129;
  EXPECT_EQ(config.PositionLimit(), 512);
}

TEST(HfConfig, RefusesARopeTypeThatIsNoStringOrIsGivenTwice) {
  EXPECT_THAT(std::string(HfErrorWith("rope_scaling", {{"rope_type", 5}}).message()),
              HasSubstr("rope_scaling: rope_type is 5, but it must be a string"));
  EXPECT_THAT(std::string(HfErrorWith("rope_scaling", {{"type", nullptr}}).message()),
              HasSubstr("type is null"));
  EXPECT_THAT(
      std::string(HfErrorWith("rope_scaling", {{"type", "linear"}, {"rope_type", "default"}}).message()),
      HasSubstr("keep one of them"));
}

TEST(HfConfig, RefusesRopeKeysThatDiffer) {
  Json json = ValidHfConfig();
  json["rope_scaling"] = json["rope_parameters"] = Llama3RopeJson();
  EXPECT_EQ(std::get<Llama3RopeScaling>(*ParsedHfConfig(json).rope_scaling).factor, 32.0F);
  json["rope_scaling"]["factor"] = 8.0;
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("rope_scaling differs from rope_parameters"));
  json["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("rope_scaling differs from rope_parameters"));
  json.erase("rope_scaling");
  json["rope_parameters"]["rope_theta"] = 7.0;
  EXPECT_THAT(std::string(HfErrorOf(json).message()), HasSubstr("rope_parameters.rope_theta is 7"));
}

TEST(HfConfig, WritesTheKeysOfBothGenerations) {
  Json json = ValidHfConfig();
  json["rope_scaling"] = Llama3RopeJson();
  const Json written = ParseJson(FormatHfConfig(ParsedHfConfig(json), ""));
  EXPECT_EQ(written["model_type"], "llama");
  EXPECT_EQ(written["dtype"], "float32");
  EXPECT_EQ(written["rope_theta"], 500000.0);
  EXPECT_EQ(written["rope_parameters"]["rope_type"], "llama3");
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], 500000.0);
  EXPECT_EQ(written["rope_scaling"]["factor"], 32.0);
  json.erase("rope_scaling");
  const Json plain = ParseJson(FormatHfConfig(ParsedHfConfig(json), ""));
  EXPECT_EQ(plain["rope_parameters"]["rope_type"], "default");
  EXPECT_FALSE(plain.contains("rope_scaling"));
}

}  // namespace
}  // namespace weft
