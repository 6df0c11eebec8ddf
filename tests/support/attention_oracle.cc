#include "tests/support/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

size_t At(int64_t index) { return static_cast<size_t>(index); }

struct Token {
  int64_t document, position;
};

std::vector<Token> TokensOf(const TokenRuns& runs) {
  std::vector<Token> tokens;
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) tokens.push_back({run.document, run.position + i});
  }
  return tokens;
}

double Dot(const double* a, const double* b, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void AddScaled(const double* source, double factor, int64_t count, double* target) {
  for (int64_t i = 0; i < count; ++i) target[i] += factor * source[i];
}

// Offsets of the rows of a query, and of the keys to which it attends.
struct Rows {
  int64_t q, out;
  std::vector<int64_t> k, v;    // One for each key.
  std::vector<double> weights;  // Softmax over these keys.
  int64_t lse_at;
  double lse;
};

// Calls visit(rows) for every query of every head and sequence.
void ForEachQuery(const OracleAttention& a, const std::vector<double>& q, const std::vector<double>& k,
                  const std::function<void(const Rows&)>& visit) {
  const std::vector<Token> queries = TokensOf(a.q_runs);
  const std::vector<Token> keys = TokensOf(a.k_runs);
  for (int64_t index = 0; index < a.batch * a.heads * a.queries(); ++index) {
    const int64_t query = index % a.queries();
    const int64_t head = index / a.queries() % a.heads;
    const int64_t batch = index / a.queries() / a.heads;
    const int64_t q_row = (batch * a.queries() + query) * a.heads + head;
    Rows rows = {
        q_row * a.head_dim, q_row * a.value_dim, {}, {}, {}, index, -std::numeric_limits<double>::infinity()};
    const Token& from = queries[At(query)];
    for (int64_t key = 0; key < a.keys(); ++key) {
      const Token& to = keys[At(key)];
      if (!OracleIsVisible(a.mask, from.document, from.position, to.document, to.position)) continue;
      if (a.pair_mask != nullptr && !(*a.pair_mask)(batch, from.position, to.position)) continue;
      const int64_t k_row = (batch * a.keys() + key) * a.kv_heads + (head + a.head_offset) / a.group;
      rows.k.push_back(k_row * a.head_dim);
      rows.v.push_back(k_row * a.value_dim);
      rows.weights.push_back(Dot(&q[At(rows.q)], &k[At(rows.k.back())], a.head_dim) * a.scale);
    }
    if (!rows.weights.empty()) {
      const double maximum = *std::max_element(rows.weights.begin(), rows.weights.end());
      double sum = 0.0;
      for (const double score : rows.weights) sum += std::exp(score - maximum);
      rows.lse = maximum + std::log(sum);
      for (double& weight : rows.weights) weight = std::exp(weight - rows.lse);
    }
    visit(rows);
  }
}

}  // namespace

bool OracleIsVisible(const AttentionMask& mask, int64_t query_document, int64_t query, int64_t key_document,
                     int64_t key) {
  if (query_document != key_document) return false;
  if (!mask.causal) return true;
  return key <= query && (!mask.keys_before.has_value() || key >= query - *mask.keys_before);
}

OracleOutputs OracleForward(const OracleAttention& attention, const std::vector<double>& q,
                            const std::vector<double>& k, const std::vector<double>& v) {
  const OracleAttention& a = attention;
  const int64_t rows = a.batch * a.queries() * a.heads;
  OracleOutputs outputs = {std::vector<double>(At(rows * a.value_dim)), std::vector<double>(At(rows))};
  ForEachQuery(a, q, k, [&](const Rows& row) {
    outputs.lse[At(row.lse_at)] = row.lse;
    for (size_t i = 0; i < row.v.size(); ++i) {
      AddScaled(&v[At(row.v[i])], row.weights[i], a.value_dim, &outputs.out[At(row.out)]);
    }
  });
  return outputs;
}

OracleGradients OracleBackward(const OracleAttention& attention, const std::vector<double>& q,
                               const std::vector<double>& k, const std::vector<double>& v,
                               const std::vector<double>& dout) {
  const OracleAttention& a = attention;
  OracleGradients gradients = {std::vector<double>(q.size()), std::vector<double>(k.size()),
                               std::vector<double>(v.size())};
  ForEachQuery(a, q, k, [&](const Rows& row) {
    std::vector<double> weight_gradients;
    double delta = 0.0;
    for (size_t i = 0; i < row.v.size(); ++i) {
      AddScaled(&dout[At(row.out)], row.weights[i], a.value_dim, &gradients.dv[At(row.v[i])]);
      weight_gradients.push_back(Dot(&dout[At(row.out)], &v[At(row.v[i])], a.value_dim));
      delta += row.weights[i] * weight_gradients[i];
    }
    for (size_t i = 0; i < row.k.size(); ++i) {
      const double score_gradient = row.weights[i] * (weight_gradients[i] - delta) * a.scale;
      AddScaled(&k[At(row.k[i])], score_gradient, a.head_dim, &gradients.dq[At(row.q)]);
      AddScaled(&q[At(row.q)], score_gradient, a.head_dim, &gradients.dk[At(row.k[i])]);
    }
  });
  return gradients;
}

namespace {

void AppendDoubles(const TensorView& view, size_t dim, const char* data, std::vector<double>& values) {
  if (dim == view.shape.size()) {
    float value = 0.0F;
    ConvertRun(data, view.dtype, &value, DType::kF32, 1);
    values.push_back(value);
    return;
  }
  const auto step = BytesOf(view.strides[dim], view.dtype);
  for (int64_t i = 0; i < view.shape[dim]; ++i) AppendDoubles(view, dim + 1, data + i * step, values);
}

}  // namespace

std::vector<double> ToDoubleValues(const TensorView& view) {
  std::vector<double> values;
  AppendDoubles(view, 0, static_cast<const char*>(view.data), values);
  return values;
}

}  // namespace weft::testing
