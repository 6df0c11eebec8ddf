// How the attention kernels find their way in tensors: one head of one sequence has a row for each token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/core/tensor_view.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

namespace weft {

template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;  // From token to token; at least the head's size.

  T* Row(int64_t token) const { return data + token * stride; }
  HeadRows Skip(int64_t tokens) const { return {Row(tokens), stride}; }
  // Rows from `token` on as a factor, or as the transpose of one.
  Factor From(int64_t token) const { return {Row(token), stride}; }
  Factor TransposedFrom(int64_t token) const { return {Row(token), stride, true}; }
};

// Of a tensor [batch, tokens, heads, dim].
template <typename T>
HeadRows<T> HeadOf(const TensorView& view, int64_t batch, int64_t head) {
  return {view.As<T>() + batch * view.strides[0] + head * view.strides[2],
          std::max(view.strides[1], view.shape[3])};
}

// rows *= beta; with 0 old values do not count.
inline void ScaleRows(HeadRows<float> rows, int64_t count, int64_t dim, float beta) {
  if (beta == 1.0F) return;
  for (int64_t row = 0; row < count; ++row) {
    float* values = rows.Row(row);
    for (int64_t i = 0; i < dim; ++i) values[i] = beta == 0.0F ? 0.0F : values[i] * beta;
  }
}

// Where the head's row of a tensor [batch, heads, tokens] starts.
inline float* StatisticsOf(const TensorView& view, int64_t batch, int64_t head) {
  return view.As<float>() + batch * view.strides[0] + head * view.strides[1];
}

// The kv head that a query head reads.
inline int64_t KvHead(const AttentionProblem& problem, int64_t head) {
  return (head + problem.head_offset) / problem.group;
}

inline std::vector<const TokenRuns*> RunsOf(absl::Span<const KeyBlock> keys) {
  std::vector<const TokenRuns*> runs;
  for (const KeyBlock& block : keys) runs.push_back(block.runs);
  return runs;
}

}  // namespace weft
