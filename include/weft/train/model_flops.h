// The arithmetic that a model's training needs, whoever runs it and however.
//
// Source: Chowdhery et al., "PaLM" (2022), appendix B: 6 N + 12 L H Q S floating-point operations a token,
// forward and backward, with N parameters that take part in products (the embedding table is only looked up),
// L layers, H heads of Q elements and S tokens a sequence. Causal masks are not deducted, and nothing
// computed twice is counted twice.
//
// Pure.
#pragma once

#include <cstdint>

#include "weft/nn/llama_config.h"

namespace weft {

double FlopsPerToken(const LlamaConfig& config, int64_t seq_len);

}  // namespace weft
