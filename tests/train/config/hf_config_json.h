// Configurations of Hugging Face models, for tests.
#pragma once

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "src/train/files/json.h"
#include "weft/train/hf_config.h"

namespace weft {

// A valid configuration of a Llama.
inline Json ValidHfConfig() {
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

// A value of its key rope_scaling.
inline Json Llama3RopeJson() {
  return {{"rope_type", "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

inline LlamaConfig ParsedHfConfig(const Json& json) {
  const auto config = ParseHfConfig(JsonText(json), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(LlamaConfig{});
}

// The error of a configuration in the file dir/config.json.
inline absl::Status HfErrorOf(const Json& json) {
  return ParseHfConfig(JsonText(json), "dir/config.json").status();
}

// The error of a valid configuration with another value of one key.
inline absl::Status HfErrorWith(const char* key, const Json& value) {
  Json json = ValidHfConfig();
  json[key] = value;
  return HfErrorOf(json);
}

}  // namespace weft
