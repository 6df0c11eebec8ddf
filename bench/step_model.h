// The model whose step is measured: a Llama of 29 M parameters, in every benchmark the same.
#pragma once

#include "weft/nn/llama_config.h"

namespace weft::bench {

inline LlamaConfig StepModelConfig() {
  LlamaConfig config;
  config.vocab_size = 4096;
  config.dim = 512;
  config.layers = 8;
  config.heads = 8;
  config.kv_heads = 4;
  config.head_dim = 64;
  config.ffn_dim = 1536;
  return config;
}

}  // namespace weft::bench
