// Model presets, and the architecture that the flags of `weft train` describe.
//
//   name     layers  dim   heads  kv  ffn   parameters (with a vocabulary of 256)
//   tiny     4       128   4      2   384   0.9 M
//   small    8       512   8      4   1408  24 M
//   medium   12      1024  16     4   2816  136 M
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/nn/llama_config.h"
#include "weft/train/config.h"

namespace weft {

std::vector<std::string> PresetNames();

// The architecture that the options describe, with defaults filled in, for sequences of `seq_len` tokens.
// REQUIRES: `options` name no Hugging Face folder and have passed Validate.
LlamaConfig MakeLlamaConfig(const ModelOptions& options, int64_t seq_len);

}  // namespace weft
