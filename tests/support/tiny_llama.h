// A Llama of two layers with odd sizes, which ranks do not divide.
#pragma once

#include "weft/nn/llama_config.h"

namespace weft::testing {

inline LlamaConfig TinyLlama() {
  LlamaConfig config;
  config.vocab_size = 13;
  config.dim = 10;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn_dim = 7;
  return config;
}

}  // namespace weft::testing
