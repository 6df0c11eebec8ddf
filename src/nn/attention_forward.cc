#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/nn/attention_kernel.h"
#include "src/nn/element.h"
#include "src/nn/scratch.h"
#include "src/nn/vector_math.h"
#include "weft/core/parallel.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

constexpr int64_t kQueryBlock = 128;
constexpr int64_t kKeyBlock =
    512;  // A multiple of kQueryBlock: then no query of a tile sees none of its keys.

// What is known of a block of queries after some of its tiles.
struct SoftmaxState {
  std::array<float, kQueryBlock> maximum;
  std::array<float, kQueryBlock> sum;
};

// Makes one row of a tile, scores so far, into exp(score - maximum), in the factors' dtype, with zeros where
// the query must not look. Returns what the sums over earlier tiles are to be multiplied with.
template <typename T>
float SoftmaxRow(float* __restrict scores, int64_t visible, int64_t columns, float scale, float& maximum,
                 float& sum, T* weights) {
  const float highest =
      LaneMax(visible, -std::numeric_limits<float>::infinity(), [scores](int64_t i) { return scores[i]; });
  const float raised = std::max(maximum, highest * scale);
  for (int64_t i = 0; i < visible; ++i) scores[i] = Exp(scores[i] * scale - raised);
  const float added = LaneSum(visible, [scores](int64_t i) { return scores[i]; });
  std::fill(scores + visible, scores + columns, 0.0F);
  if constexpr (!std::is_same_v<T, float>) {
    for (int64_t i = 0; i < columns; ++i) weights[i] = Round<T>(scores[i]);
  }
  const float correction = Exp(maximum - raised);
  sum = sum * correction + added;
  maximum = raised;
  return correction;
}

// One block of queries of one head, over all keys that it may see.
template <typename T>
class QueryBlockForward {
 public:
  QueryBlockForward(const AttentionSizes& sizes, int64_t first_query)
      : sizes_(sizes), first_(first_query), rows_(std::min(kQueryBlock, sizes.seq - first_query)) {
    static thread_local Scratch score_memory;
    static thread_local Scratch weight_memory;
    static thread_local Scratch out_memory;
    scores_ = score_memory.Floats(kQueryBlock * kKeyBlock);
    // In fp32 the weights take the place of the scores.
    weights_ = std::is_same_v<T, float>
                   ? reinterpret_cast<T*>(scores_)
                   : static_cast<T*>(weight_memory.Bytes(kQueryBlock * kKeyBlock * sizeof(T)));
    out_ = out_memory.Floats(kQueryBlock * sizes.head_dim);
  }

  // Pointers to the head's first token.
  void Run(const T* q, const T* k, const T* v, T* out, float* lse) {
    state_.maximum.fill(-std::numeric_limits<float>::infinity());
    state_.sum.fill(0.0F);
    for (int64_t key = 0; key < first_ + rows_; key += kKeyBlock) {
      AddTile(q + first_ * sizes_.query_row(), k, v, key);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      StoreRow(row, out + (first_ + row) * sizes_.query_row());
      lse[first_ + row] = state_.maximum[row] + std::log(state_.sum[row]);
    }
  }

 private:
  void AddTile(const T* q, const T* k, const T* v, int64_t key) {
    const int64_t columns = std::min(kKeyBlock, first_ + rows_ - key);
    const int64_t key_row = sizes_.key_row();
    Matmul(rows_, columns, sizes_.head_dim, kDTypeOf<T>, {q, sizes_.query_row()},
           {k + key * key_row, key_row, true}, 0.0F, DType::kF32, scores_, columns);
    const float scale = 1.0F / std::sqrt(static_cast<float>(sizes_.head_dim));
    for (int64_t row = 0; row < rows_; ++row) {
      const float correction =
          SoftmaxRow(scores_ + row * columns, VisibleKeys(first_ + row, key, columns), columns, scale,
                     state_.maximum[row], state_.sum[row], weights_ + row * columns);
      if (key > 0 && correction != 1.0F) {
        for (int64_t i = 0; i < sizes_.head_dim; ++i) out_[row * sizes_.head_dim + i] *= correction;
      }
    }
    Matmul(rows_, sizes_.head_dim, columns, kDTypeOf<T>, {weights_, columns}, {v + key * key_row, key_row},
           key > 0 ? 1.0F : 0.0F, DType::kF32, out_, sizes_.head_dim);
  }

  void StoreRow(int64_t row, T* out) const {
    const float inverse = 1.0F / state_.sum[row];
    for (int64_t i = 0; i < sizes_.head_dim; ++i)
      out[i] = Round<T>(out_[row * sizes_.head_dim + i] * inverse);
  }

  const AttentionSizes& sizes_;
  int64_t first_;
  int64_t rows_;
  float* scores_;
  T* weights_;
  float* out_;
  SoftmaxState state_;
};

}  // namespace

void AttentionForward(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& out, const Tensor& lse) {
  const int64_t blocks = (sizes.seq + kQueryBlock - 1) / kQueryBlock;
  WithElementType(q.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(sizes.batch * sizes.heads * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t head = item / blocks % sizes.heads;
        const int64_t batch = item / blocks / sizes.heads;
        const int64_t query_at = sizes.QueryAt(batch, head);
        const int64_t key_at = sizes.KeyAt(batch, head);
        QueryBlockForward<T>(sizes, item % blocks * kQueryBlock)
            .Run(q.As<T>() + query_at, k.As<T>() + key_at, v.As<T>() + key_at, out.As<T>() + query_at,
                 lse.As<float>() + (batch * sizes.heads + head) * sizes.seq);
      }
    });
  });
}

}  // namespace weft
