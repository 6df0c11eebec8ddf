#include <algorithm>
#include <cmath>

#include "src/nn/attention_kernel.h"
#include "src/nn/element.h"
#include "src/nn/scratch.h"
#include "src/nn/vector_math.h"
#include "weft/core/parallel.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

// Tiles are square, so that the first tile of a block of keys covers all of them. Two are alive at once.
constexpr int64_t kBlock = 128;

// One query's row of a tile: scores become weights P, and the gradients of the weights become those of the
// scores.
void GradientOfRow(float* __restrict scores, float* __restrict gradients, int64_t visible, int64_t columns,
                   float scale, float lse, float delta) {
  for (int64_t i = 0; i < visible; ++i) {
    const float weight = Exp(scores[i] * scale - lse);
    scores[i] = weight;
    gradients[i] = weight * (gradients[i] - delta) * scale;
  }
  std::fill(scores + visible, scores + columns, 0.0F);
  std::fill(gradients + visible, gradients + columns, 0.0F);
}

template <typename T>
const T* Narrow(const float* values, int64_t count, Scratch& scratch) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    T* narrow = static_cast<T*>(scratch.Bytes(static_cast<size_t>(count) * sizeof(T)));
    for (int64_t i = 0; i < count; ++i) narrow[i] = Round<T>(values[i]);
    return narrow;
  }
}

// One query head of one sequence. Pointers are to its first token; dk and dv have a row for each query head.
template <typename T>
struct HeadBackward {
  const AttentionSizes& sizes;
  const T *q, *k, *v, *out, *dout;
  const float* lse;
  float *dq, *dk, *dv;

  void Run() const {
    static thread_local Scratch delta_memory;
    float* delta = delta_memory.Floats(sizes.seq);
    for (int64_t token = 0; token < sizes.seq; ++token) {
      const int64_t at = token * sizes.query_row();
      delta[token] =
          LaneSum(sizes.head_dim, [&](int64_t i) { return Load(dout[at + i]) * Load(out[at + i]); });
    }
    for (int64_t key = 0; key < sizes.seq; key += kBlock) {
      for (int64_t query = key; query < sizes.seq; query += kBlock) AddTile(key, query, delta);
    }
  }

  void AddTile(int64_t key, int64_t query, const float* delta) const {
    static thread_local Scratch score_memory;
    static thread_local Scratch gradient_memory;
    static thread_local Scratch narrow_weights;
    static thread_local Scratch narrow_gradients;
    const int64_t rows = std::min(kBlock, sizes.seq - query);
    const int64_t columns = std::min(kBlock, sizes.seq - key);
    const int64_t query_row = sizes.query_row();
    const int64_t key_row = sizes.key_row();
    const int64_t dim = sizes.head_dim;
    const DType dtype = kDTypeOf<T>;
    const Factor tile_q = {q + query * query_row, query_row};
    const Factor tile_dout = {dout + query * query_row, query_row};

    float* scores = score_memory.Floats(kBlock * kBlock);
    float* gradients = gradient_memory.Floats(kBlock * kBlock);
    Matmul(rows, columns, dim, dtype, tile_q, {k + key * key_row, key_row, true}, 0.0F, DType::kF32, scores,
           columns);
    Matmul(rows, columns, dim, dtype, tile_dout, {v + key * key_row, key_row, true}, 0.0F, DType::kF32,
           gradients, columns);
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    for (int64_t row = 0; row < rows; ++row) {
      GradientOfRow(scores + row * columns, gradients + row * columns, VisibleKeys(query + row, key, columns),
                    columns, scale, lse[query + row], delta[query + row]);
    }
    const Factor weights = {Narrow<T>(scores, rows * columns, narrow_weights), columns};
    const Factor score_gradients = {Narrow<T>(gradients, rows * columns, narrow_gradients), columns};
    const float key_beta = query == key ? 0.0F : 1.0F;  // The diagonal's tile is the first of its keys.
    Matmul(columns, dim, rows, dtype, Transposed(weights), tile_dout, key_beta, DType::kF32,
           dv + key * query_row, query_row);
    Matmul(columns, dim, rows, dtype, Transposed(score_gradients), tile_q, key_beta, DType::kF32,
           dk + key * query_row, query_row);
    Matmul(rows, dim, columns, dtype, score_gradients, {k + key * key_row, key_row}, key == 0 ? 0.0F : 1.0F,
           DType::kF32, dq + query * query_row, query_row);
  }

  static Factor Transposed(Factor factor) { return {factor.data, factor.leading, true}; }
};

// Adds the query heads of each group: [tokens, kv_heads, group, head_dim] -> [tokens, kv_heads, head_dim].
template <typename T>
void SumGroups(const AttentionSizes& sizes, const float* __restrict per_head, T* __restrict out) {
  const int64_t dim = sizes.head_dim;
  const int64_t group = sizes.group();
  ParallelFor(sizes.batch * sizes.seq * sizes.kv_heads, RowGrain(group * dim),
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const float* source = per_head + row * group * dim;
                  for (int64_t i = 0; i < dim; ++i) {
                    float sum = source[i];
                    for (int64_t member = 1; member < group; ++member) sum += source[member * dim + i];
                    out[row * dim + i] = Round<T>(sum);
                  }
                }
              });
}

// The gradient in the dtype and heads of what it is the gradient of.
Tensor Finish(const AttentionSizes& sizes, const Tensor& per_head, const Tensor& like) {
  if (like.dtype() == DType::kF32 && like.shape() == per_head.shape()) return per_head;
  Tensor finished = Tensor::Empty(like.dtype(), like.shape());
  const bool grouped = like.shape() != per_head.shape();
  const AttentionSizes summed = {sizes.batch, sizes.seq, sizes.heads, grouped ? sizes.kv_heads : sizes.heads,
                                 sizes.head_dim};
  WithElementType(like.dtype(), [&](auto element) {
    using T = decltype(element);
    SumGroups(summed, per_head.As<float>(), finished.As<T>());
  });
  return finished;
}

}  // namespace

AttentionGradients AttentionBackward(const AttentionSizes& sizes, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& out, const Tensor& lse,
                                     const Tensor& dout) {
  const Tensor dq = Tensor::Empty(DType::kF32, q.shape());
  const Tensor dk = Tensor::Empty(DType::kF32, q.shape());
  const Tensor dv = Tensor::Empty(DType::kF32, q.shape());
  WithElementType(q.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(sizes.batch * sizes.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t query_at = sizes.QueryAt(item / sizes.heads, item % sizes.heads);
        const int64_t key_at = sizes.KeyAt(item / sizes.heads, item % sizes.heads);
        HeadBackward<T>{sizes,
                        q.As<T>() + query_at,
                        k.As<T>() + key_at,
                        v.As<T>() + key_at,
                        out.As<T>() + query_at,
                        dout.As<T>() + query_at,
                        lse.As<float>() + item * sizes.seq,
                        dq.As<float>() + query_at,
                        dk.As<float>() + query_at,
                        dv.As<float>() + query_at}
            .Run();
      }
    });
  });
  return {Finish(sizes, dq, q), Finish(sizes, dk, k), Finish(sizes, dv, v)};
}

}  // namespace weft
