// Oracles: the layers of a Llama decoder as plain loops in double.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/nn/gradient_check.h"
#include "tests/support/attention_oracle.h"
#include "weft/nn/llama_config.h"

namespace weft::oracle {

// y [rows, out] = x [rows, in] W^T, W [out, in].
Doubles Linear(const Doubles& x, const Doubles& weight, int64_t in, int64_t out);
Doubles RmsNorm(const Doubles& x, const Doubles& weight, double eps);
Doubles LayerNorm(const Doubles& x, const Doubles& weight, const Doubles& bias, double eps);
// x [batch, seq, heads, head_dim]; positions start at 0. Partial: head_dim is more than two for each
// frequency.
Doubles Rope(const Doubles& x, int64_t seq, int64_t heads, const std::vector<float>& frequencies);
Doubles PartialRope(const Doubles& x, int64_t seq, int64_t heads, int64_t head_dim,
                    const std::vector<float>& frequencies);
Doubles SwiGlu(const Doubles& gate, const Doubles& up);
// The tanh approximation.
Doubles Gelu(const Doubles& x);
// The attention of a decoder, for testing::OracleForward.
testing::OracleAttention CausalAttention(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                         int64_t head_dim);
Doubles Embedding(const Doubles& ids, const Doubles& table, int64_t dim);
double CrossEntropy(const Doubles& logits, const Doubles& targets, int64_t vocab_size);
Doubles Add(const Doubles& a, const Doubles& b);

// `weights` are those of one block in the order of its parameters: norm, q, k, v, o, norm, gate, up, down.
Doubles DecoderBlock(const LlamaConfig& config, int64_t batch, int64_t seq, const Doubles& x,
                     const Doubles* weights);
// The sum of the tokens' losses. `parameters` are in the order of AllParameters().
double LlamaLoss(const LlamaConfig& config, int64_t batch, int64_t seq, const Doubles& ids,
                 const Doubles& targets, const Doubles* parameters);

}  // namespace weft::oracle
