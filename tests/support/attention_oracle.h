// Oracle of attention: plain loops over every query and every key in double precision.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/core/tensor_view.h"
#include "weft/nn/attention_mask.h"

namespace weft::testing {

struct OracleAttention {
  AttentionMask mask;
  double scale = 1.0;
  int64_t batch = 1, heads = 1, kv_heads = 1;
  int64_t group = 1, head_offset = 0;  // Query head h reads KV head (h + head_offset) / group.
  int64_t head_dim = 1, value_dim = 1;
  TokenRuns q_runs, k_runs;
  std::shared_ptr<const PairMask> pair_mask = nullptr;

  int64_t queries() const { return TokenCount(q_runs); }
  int64_t keys() const { return TokenCount(k_runs); }
};

// Values are row-major: q, dq [batch, queries, heads, head_dim]; k, dk [batch, keys, kv_heads, head_dim];
// v, dv [batch, keys, kv_heads, value_dim]; out, dout [batch, queries, heads, value_dim].
struct OracleOutputs {
  std::vector<double> out;
  std::vector<double> lse;  // [batch, heads, queries]; -infinity for a query that attends to no key.
};
OracleOutputs OracleForward(const OracleAttention& attention, const std::vector<double>& q,
                            const std::vector<double>& k, const std::vector<double>& v);

struct OracleGradients {
  std::vector<double> dq, dk, dv;
};
OracleGradients OracleBackward(const OracleAttention& attention, const std::vector<double>& q,
                               const std::vector<double>& k, const std::vector<double>& v,
                               const std::vector<double>& dout);

// True if a query attends to a key, given their documents and their positions `query` and `key`.
bool OracleIsVisible(const AttentionMask& mask, int64_t query_document, int64_t query, int64_t key_document,
                     int64_t key);

// The elements of a floating-point view in row-major order.
std::vector<double> ToDoubleValues(const TensorView& view);

}  // namespace weft::testing
