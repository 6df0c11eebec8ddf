// The model of all step benchmarks: a Llama with 29 M parameters.
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
