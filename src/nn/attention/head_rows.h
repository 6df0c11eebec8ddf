// Row access for the attention kernels: one head of one sequence of a tensor as a matrix with a row for each
// token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/core/tensor_view.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

namespace weft {

// A matrix [tokens, dim] in strided memory.
template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;  // Elements from token to token; at least dim.

  T* Row(int64_t token) const { return data + token * stride; }
  HeadRows Skip(int64_t tokens) const { return {Row(tokens), stride}; }
  // The rows from `token` on as an operand of a product, or as a transposed operand.
  Factor From(int64_t token) const { return {Row(token), stride}; }
  Factor TransposedFrom(int64_t token) const { return {Row(token), stride, true}; }
};

// True if the tokens of a tensor [batch, tokens, heads, dim] lie far enough apart for HeadOf: expanded and
// overlapping tokens do not.
inline bool HasSeparateTokens(const TensorView& view) {
  return view.elements() == 0 || view.shape[1] <= 1 || view.strides[1] >= view.shape[3];
}

// The rows of one head of a tensor [batch, tokens, heads, dim]. REQUIRES: HasSeparateTokens(view).
template <typename T>
HeadRows<T> HeadOf(const TensorView& view, int64_t batch, int64_t head) {
  return {view.As<T>() + batch * view.strides[0] + head * view.strides[2],
          view.shape[1] <= 1 ? view.shape[3] : view.strides[1]};
}

// rows *= beta. With beta 0 the old values are not read.
inline void ScaleRows(HeadRows<float> rows, int64_t count, int64_t dim, float beta) {
  if (beta == 1.0F) return;
  for (int64_t row = 0; row < count; ++row) {
    float* values = rows.Row(row);
    for (int64_t i = 0; i < dim; ++i) values[i] = beta == 0.0F ? 0.0F : values[i] * beta;
  }
}

// The first element of one head's row in a tensor [batch, heads, tokens], such as the log-sum-exp.
inline float* StatisticsOf(const TensorView& view, int64_t batch, int64_t head) {
  return view.As<float>() + batch * view.strides[0] + head * view.strides[1];
}

// Index of the kv head that a query head reads.
inline int64_t KvHead(const AttentionProblem& problem, int64_t head) {
  return (head + problem.head_offset) / problem.group;
}

// The query heads [first, end) of `heads` that read a kv head; empty if first >= end.
struct HeadRange {
  int64_t first, end;
};
inline HeadRange QueryHeadsOf(const AttentionProblem& problem, int64_t heads, int64_t kv_head) {
  return {std::max<int64_t>(0, kv_head * problem.group - problem.head_offset),
          std::min(heads, (kv_head + 1) * problem.group - problem.head_offset)};
}

inline std::vector<const TokenRuns*> RunsOf(absl::Span<const KeyBlock> keys) {
  std::vector<const TokenRuns*> runs;
  for (const KeyBlock& block : keys) runs.push_back(block.runs);
  return runs;
}

}  // namespace weft
