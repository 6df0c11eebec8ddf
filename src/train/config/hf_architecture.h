// Table of the architectures that weft reads and writes in a config.json of Hugging Face: the traits of each,
// and the values that transformers takes for keys that a config.json leaves out.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "weft/nn/gated_unit.h"

namespace weft {

// How a config.json says whether the attention's projections have biases.
enum class BiasKeys : uint8_t {
  kNone,           // They have none.
  kAlwaysQkv,      // Those of queries, keys and values always have one.
  kAttentionBias,  // All four have one if attention_bias is true.
};

// How a config.json gives the attention's window.
enum class WindowKeys : uint8_t {
  kNone,              // There is no window.
  kSlidingWindow,     // sliding_window, for all layers; null: no window.
  kUseSlidingWindow,  // If use_sliding_window is true, sliding_window, for the layers from max_window_layers
                      // on, or for those that layer_types names.
};

struct HfArchitecture {
  std::string_view model_type;
  std::string_view class_name;
  BiasKeys bias;
  bool qk_norm;
  WindowKeys window;
  GateActivation activation;  // Without hidden_act.
  bool gelu_is_tanh;          // hidden_act "gelu" means the tanh approximation.
  bool scales_embeddings;     // By the root of hidden_size.
  float norm_offset;
  bool ties_head;         // Without tie_word_embeddings.
  int64_t kv_heads;       // Without num_key_value_heads. 0: num_attention_heads.
  int64_t head_dim;       // Without head_dim. 0: hidden_size / num_attention_heads.
  int64_t max_positions;  // Without max_position_embeddings.
};

// Source: the configuration classes and models of transformers 5.24, one folder for each model_type.
inline constexpr std::array<HfArchitecture, 5> kHfArchitectures = {{
    {"llama", "LlamaForCausalLM", BiasKeys::kAttentionBias, false, WindowKeys::kNone, GateActivation::kSilu,
     false, false, 0.0F, false, 0, 0, 2048},
    {"mistral", "MistralForCausalLM", BiasKeys::kNone, false, WindowKeys::kSlidingWindow,
     GateActivation::kSilu, false, false, 0.0F, false, 8, 0, 131072},
    {"qwen2", "Qwen2ForCausalLM", BiasKeys::kAlwaysQkv, false, WindowKeys::kUseSlidingWindow,
     GateActivation::kSilu, false, false, 0.0F, false, 32, 0, 32768},
    {"qwen3", "Qwen3ForCausalLM", BiasKeys::kAttentionBias, true, WindowKeys::kUseSlidingWindow,
     GateActivation::kSilu, false, false, 0.0F, false, 32, 128, 32768},
    {"gemma", "GemmaForCausalLM", BiasKeys::kAttentionBias, false, WindowKeys::kNone,
     GateActivation::kGeluTanh, true, true, 1.0F, true, 16, 256, 8192},
}};

// Without sliding_window and max_window_layers.
inline constexpr int64_t kDefaultWindow = 4096;
inline constexpr int64_t kDefaultFirstWindowLayer = 28;

// Null for an unknown model_type.
constexpr const HfArchitecture* FindHfArchitecture(std::string_view model_type) {
  for (const HfArchitecture& architecture : kHfArchitectures) {
    if (architecture.model_type == model_type) return &architecture;
  }
  return nullptr;
}

}  // namespace weft
