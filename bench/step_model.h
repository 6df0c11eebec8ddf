// The models of all step benchmarks: Llamas with 29 and 110 M parameters. bench/peers/llama.py has the same.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "weft/core/dtype.h"
#include "weft/nn/llama_config.h"

namespace weft::bench {

// `model`: "29M" or "110M".
// Errors: any other name ends the process with a message.
inline LlamaConfig StepModelConfig(const std::string& model) {
  LlamaConfig config;
  config.head_dim = 64;
  if (model == "29M") {
    config.vocab_size = 4096;
    config.dim = 512;
    config.layers = 8;
    config.heads = 8;
    config.kv_heads = 4;
    config.ffn_dim = 1536;
    return config;
  }
  if (model == "110M") {
    config.vocab_size = 16384;
    config.dim = 768;
    config.layers = 12;
    config.heads = 12;
    config.kv_heads = 12;
    config.ffn_dim = 2048;
    return config;
  }
  std::fprintf(stderr, "bench: unknown model '%s'; expected 29M or 110M\n", model.c_str());
  std::exit(2);
}

// `dtype`: "f32" or "bf16".
// Errors: any other name ends the process with a message.
inline DType ComputeDType(const std::string& dtype) {
  if (dtype == "f32") return DType::kF32;
  if (dtype == "bf16") return DType::kBF16;
  std::fprintf(stderr, "bench: unknown dtype '%s'; expected f32 or bf16\n", dtype.c_str());
  std::exit(2);
}

}  // namespace weft::bench
