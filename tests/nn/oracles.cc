#include "tests/nn/oracles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/nn/rope.h"

namespace weft::oracle {
namespace {

size_t At(int64_t index) { return static_cast<size_t>(index); }

}  // namespace

Doubles Linear(const Doubles& x, const Doubles& weight, int64_t in, int64_t out) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in;
  Doubles y(At(rows * out));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) y[At(row * out + o)] += x[At(row * in + i)] * weight[At(o * in + i)];
    }
  }
  return y;
}

Doubles RmsNorm(const Doubles& x, const Doubles& weight, double eps) {
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += weight.size()) {
    double squares = 0.0;
    for (size_t i = 0; i < weight.size(); ++i) squares += x[row + i] * x[row + i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(weight.size()) + eps);
    for (size_t i = 0; i < weight.size(); ++i) y[row + i] = x[row + i] * scale * weight[i];
  }
  return y;
}

Doubles LayerNorm(const Doubles& x, const Doubles& weight, const Doubles& bias, double eps) {
  Doubles y(x.size());
  const auto count = static_cast<double>(weight.size());
  for (size_t row = 0; row < x.size(); row += weight.size()) {
    double mean = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i < weight.size(); ++i) mean += x[row + i] / count;
    for (size_t i = 0; i < weight.size(); ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
    const double scale = 1.0 / std::sqrt(squares / count + eps);
    for (size_t i = 0; i < weight.size(); ++i) y[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
  }
  return y;
}

Doubles Rope(const Doubles& x, int64_t seq, int64_t heads, const std::vector<float>& frequencies) {
  return PartialRope(x, seq, heads, 2 * static_cast<int64_t>(frequencies.size()), frequencies);
}

Doubles PartialRope(const Doubles& x, int64_t seq, int64_t heads, int64_t head_dim,
                    const std::vector<float>& frequencies) {
  const auto half = static_cast<int64_t>(frequencies.size());
  Doubles y = x;
  const int64_t rows = static_cast<int64_t>(x.size()) / head_dim;
  for (int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(row / heads % seq);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = position * static_cast<double>(frequencies[At(i)]);
      const size_t lower = At(row * head_dim + i);
      const size_t upper = lower + At(half);
      y[lower] = x[lower] * std::cos(angle) - x[upper] * std::sin(angle);
      y[upper] = x[upper] * std::cos(angle) + x[lower] * std::sin(angle);
    }
  }
  return y;
}

Doubles SwiGlu(const Doubles& gate, const Doubles& up) {
  Doubles y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return y;
}

Doubles Gelu(const Doubles& x) {
  Doubles y;
  for (const double value : x) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (value + 0.044715 * value * value * value);
    y.push_back(0.5 * value * (1.0 + std::tanh(inner)));
  }
  return y;
}

testing::OracleAttention CausalAttention(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                         int64_t head_dim) {
  testing::OracleAttention attention;
  attention.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  attention.batch = batch;
  attention.heads = heads;
  attention.kv_heads = kv_heads;
  attention.group = heads / kv_heads;
  attention.head_dim = attention.value_dim = head_dim;
  attention.q_runs = attention.k_runs = WholeSequence(seq);
  return attention;
}

Doubles Embedding(const Doubles& ids, const Doubles& table, int64_t dim) {
  Doubles out;
  for (const double id : ids) {
    const auto row = table.begin() + static_cast<int64_t>(id) * dim;
    out.insert(out.end(), row, row + dim);
  }
  return out;
}

double CrossEntropy(const Doubles& logits, const Doubles& targets, int64_t vocab_size) {
  double loss = 0.0;
  for (size_t row = 0; row < targets.size(); ++row) {
    const double* values = logits.data() + static_cast<int64_t>(row) * vocab_size;
    const double maximum = *std::max_element(values, values + vocab_size);
    double sum = 0.0;
    for (int64_t i = 0; i < vocab_size; ++i) sum += std::exp(values[i] - maximum);
    loss += std::log(sum) + maximum - values[static_cast<int64_t>(targets[row])];
  }
  return loss;
}

Doubles Add(const Doubles& a, const Doubles& b) {
  Doubles sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

Doubles DecoderBlock(const LlamaConfig& c, int64_t batch, int64_t seq, const Doubles& x,
                     const Doubles* weights) {
  const std::vector<float> frequencies = RopeFrequencies(c.head_dim, c.rope_theta, c.rope_scaling);
  const int64_t query_features = c.heads * c.head_dim;
  const int64_t key_features = c.kv_heads * c.head_dim;
  const Doubles normed = RmsNorm(x, weights[0], static_cast<double>(c.norm_eps));
  const Doubles q = Rope(Linear(normed, weights[1], c.dim, query_features), seq, c.heads, frequencies);
  const Doubles k = Rope(Linear(normed, weights[2], c.dim, key_features), seq, c.kv_heads, frequencies);
  const Doubles v = Linear(normed, weights[3], c.dim, key_features);
  const Doubles mixed =
      testing::OracleForward(CausalAttention(batch, seq, c.heads, c.kv_heads, c.head_dim), q, k, v).out;
  const Doubles middle = Add(x, Linear(mixed, weights[4], query_features, c.dim));
  const Doubles middle_normed = RmsNorm(middle, weights[5], static_cast<double>(c.norm_eps));
  const Doubles activated = SwiGlu(Linear(middle_normed, weights[6], c.dim, c.ffn_dim),
                                   Linear(middle_normed, weights[7], c.dim, c.ffn_dim));
  return Add(middle, Linear(activated, weights[8], c.ffn_dim, c.dim));
}

double LlamaLoss(const LlamaConfig& c, int64_t batch, int64_t seq, const Doubles& ids, const Doubles& targets,
                 const Doubles* parameters) {
  constexpr int64_t kBlockParameters = 9;
  Doubles hidden = Embedding(ids, parameters[0], c.dim);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    hidden = DecoderBlock(c, batch, seq, hidden, parameters + 1 + layer * kBlockParameters);
  }
  const Doubles* norm = parameters + 1 + c.layers * kBlockParameters;
  const Doubles& head = c.tie_word_embeddings ? parameters[0] : norm[1];
  const Doubles normed = RmsNorm(hidden, *norm, static_cast<double>(c.norm_eps));
  return CrossEntropy(Linear(normed, head, c.dim, c.vocab_size), targets, c.vocab_size);
}

}  // namespace weft::oracle
