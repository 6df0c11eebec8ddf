// The arithmetic of attention, on raw memory. See Note [Attention by tiles].
//
// Note [Attention by tiles]
// Queries and keys are taken in blocks, so that a tile of scores stays in a core's cache. Each tile is one
// matrix product Q K^T, then a pass of softmax over its rows, then the product with V, so nearly all of the
// time is spent in the matrix library. Blocks above the diagonal are skipped; the tile that the diagonal
// crosses is cut off at its last query. A worker takes whole heads (backward) or query blocks of a head
// (forward), and its products run on its own thread alone.
//
// Forward keeps for every query the running maximum m and the sum l of exp(score - m); when a later tile
// raises m, what was summed so far is scaled by exp(m_old - m_new). At the end out = sum / l and lse = m +
// log l.
//
// Backward has P = exp(score - lse) without any running state, and with delta = sum(dO * O) of a query:
//   dV += P^T dO,   dS = P * (dO V^T - delta) * scale,   dK += dS^T Q,   dQ += dS K.
// dK and dV are made for each query head, and then added up over the heads of a group, in order.
#pragma once

#include <cstdint>

#include "weft/core/tensor.h"

namespace weft {

struct AttentionSizes {
  int64_t batch, seq, heads, kv_heads, head_dim;

  int64_t group() const { return heads / kv_heads; }
  int64_t query_row() const { return heads * head_dim; }  // Elements from token to token.
  int64_t key_row() const { return kv_heads * head_dim; }
  // Where a head's first token lies.
  int64_t QueryAt(int64_t batch_index, int64_t head) const {
    return batch_index * seq * query_row() + head * head_dim;
  }
  int64_t KeyAt(int64_t batch_index, int64_t head) const {
    return batch_index * seq * key_row() + head / group() * head_dim;
  }
};

// Of the columns of a tile that starts at `key`, those that query `query` may see.
inline int64_t VisibleKeys(int64_t query, int64_t key, int64_t columns) {
  const int64_t visible = query + 1 - key;
  return visible < 0 ? 0 : (visible < columns ? visible : columns);
}

// Writes out (like q) and lse [batch, heads, seq] (f32).
void AttentionForward(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& out, const Tensor& lse);

struct AttentionGradients {
  Tensor dq, dk, dv;
};
AttentionGradients AttentionBackward(const AttentionSizes& sizes, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& out, const Tensor& lse,
                                     const Tensor& dout);

}  // namespace weft
