#include "context_parallel/layouts/lse_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/parallel.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();  // LSE of a query without keys.
constexpr int64_t kElementsPerThread = 8192;

float Sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
// lse - log sigmoid(lse - block_lse), without cancellation or overflow.
float LogSumOfTwo(float lse, float block_lse) {
  return std::max(lse, block_lse) + std::log1p(std::exp(-std::abs(lse - block_lse)));
}

void MergeRow(float* out, float& lse, const float* block_out, float block_lse, int64_t dim) {
  if (block_lse == kNoKeys) {
    if (lse == kNoKeys) std::fill_n(out, dim, 0.0F);
    return;
  }
  if (lse == kNoKeys) {
    std::copy_n(block_out, dim, out);
    lse = block_lse;
    return;
  }
  const float weight = Sigmoid(block_lse - lse);
  for (int64_t i = 0; i < dim; ++i) out[i] -= weight * (out[i] - block_out[i]);
  lse = LogSumOfTwo(lse, block_lse);
}

int64_t OffsetOf(const TensorView& view, int64_t a, int64_t b, int64_t c) {
  return a * view.strides[0] + b * view.strides[1] + c * view.strides[2];
}

}  // namespace

void LseMerge(const TensorView& out, const TensorView& lse, const TensorView& block_out,
              const TensorView& block_lse) {
  const Shape& shape = out.shape;
  WEFT_CHECK(shape.size() == 4 && block_out.shape == shape, "LseMerge of outputs with different shapes");
  WEFT_CHECK(lse.shape == Shape({shape[0], shape[2], shape[1]}) && block_lse.shape == lse.shape,
             "LseMerge of an LSE whose shape does not match its output");
  const int64_t queries = shape[1];
  const int64_t heads = shape[2];
  const int64_t dim = shape[3];
  WEFT_CHECK(dim <= 1 || (out.strides[3] == 1 && block_out.strides[3] == 1),
             "LseMerge of outputs whose innermost stride is not 1");
  const int64_t grain = kElementsPerThread / std::max<int64_t>(dim, 1) + 1;
  ParallelFor(shape[0] * queries * heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t head = row % heads;
      const int64_t query = row / heads % queries;
      const int64_t batch = row / (heads * queries);
      MergeRow(out.As<float>() + OffsetOf(out, batch, query, head),
               lse.As<float>()[OffsetOf(lse, batch, head, query)],
               block_out.As<float>() + OffsetOf(block_out, batch, query, head),
               block_lse.As<float>()[OffsetOf(block_lse, batch, head, query)], dim);
    }
  });
}

}  // namespace weft
