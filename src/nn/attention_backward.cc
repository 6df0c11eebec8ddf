#include <algorithm>
#include <cmath>

#include "src/nn/attention_tiles.h"
#include "src/nn/element.h"
#include "src/nn/head_rows.h"
#include "src/nn/key_tile_sums.h"
#include "src/nn/scratch.h"
#include "src/nn/vector_math.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

// Note [Attention's gradients]
// Backward has the weights P = exp(score - lse) without any running state, and with delta = sum(dO * O) of a
// query:
//   dV += P^T dO,   dS = P * (dO V^T - delta) * scale,   dK += dS^T Q,   dQ += dS K.
// Key tiles are taken one after the other, and for each all query heads at once: a head walks down the rows,
// sums its own dK and dV of the tile, and adds to its dQ. Then the heads of a group are added up, in order.
// So workers share nothing, and what is kept for each query head is one tile, not all keys.

namespace weft {
namespace {

// One query's row of a tile: scores become weights P, and the gradients of the weights become those of the
// scores.
void GradientOfRow(float* __restrict scores, float* __restrict gradients, absl::Span<const ColumnSpan> seen,
                   int64_t columns, float scale, float lse, float delta) {
  int64_t done = 0;
  for (const ColumnSpan& span : seen) {
    std::fill(scores + done, scores + span.begin, 0.0F);
    std::fill(gradients + done, gradients + span.begin, 0.0F);
    for (int64_t i = span.begin; i < span.end; ++i) {
      const float weight = Exp(scores[i] * scale - lse);
      scores[i] = weight;
      gradients[i] = weight * (gradients[i] - delta) * scale;
    }
    done = span.end;
  }
  std::fill(scores + done, scores + columns, 0.0F);
  std::fill(gradients + done, gradients + columns, 0.0F);
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

// What all heads and key tiles of a call share.
struct BackwardCall {
  const AttentionProblem& problem;
  const AttentionPlan& plan;
  TileSize size;
  const TensorView& q;
  absl::Span<const KeyBlock> keys;
  const TensorView& lse;
  const TensorView& delta;
  const TensorView& dout;
  const TensorView& dq;  // f32, and its old value counts.

  int64_t batches() const { return q.shape[0]; }
  int64_t heads() const { return q.shape[2]; }
  int64_t head_dim() const { return q.shape[3]; }
  int64_t value_dim() const { return dout.shape[3]; }
};

// One query head of one sequence, with one key tile.
template <typename T>
class HeadBackward {
 public:
  HeadBackward(const BackwardCall& call, const KeyTile& key_tile, int64_t batch, int64_t head)
      : call_(call),
        key_tile_(key_tile),
        q_(HeadOf<T>(call.q, batch, head)),
        k_(HeadOf<T>(call.keys[static_cast<size_t>(key_tile.block)].k, batch, KvHead(call.problem, head))),
        v_(HeadOf<T>(call.keys[static_cast<size_t>(key_tile.block)].v, batch, KvHead(call.problem, head))),
        dout_(HeadOf<T>(call.dout, batch, head)),
        dq_(HeadOf<float>(call.dq, batch, head)),
        lse_(StatisticsOf(call.lse, batch, head)),
        delta_(StatisticsOf(call.delta, batch, head)) {}

  void Run(absl::Span<const AttentionTile> tiles, TileGradients sums) const {
    const bool first_writes_all = !tiles.empty() && tiles[0].columns == key_tile_.count;
    if (!first_writes_all) {
      std::fill_n(sums.dk, key_tile_.count * call_.head_dim(), 0.0F);
      std::fill_n(sums.dv, key_tile_.count * call_.value_dim(), 0.0F);
    }
    for (const AttentionTile& tile : tiles) {
      AddTile(tile, first_writes_all && &tile == tiles.data() ? 0.0F : 1.0F, sums);
    }
  }

 private:
  void AddTile(const AttentionTile& tile, float key_beta, TileGradients sums) const {
    static thread_local Scratch score_memory;
    static thread_local Scratch gradient_memory;
    static thread_local Scratch narrow_weights;
    static thread_local Scratch narrow_gradients;
    const int64_t rows = tile.rows;
    const int64_t columns = tile.columns;
    const DType dtype = kDTypeOf<T>;
    const Factor q = q_.From(tile.first_row);
    const Factor dout = dout_.From(tile.first_row);
    float* scores = score_memory.Floats(call_.size.rows * call_.size.columns);
    float* gradients = gradient_memory.Floats(call_.size.rows * call_.size.columns);
    Matmul(rows, columns, call_.head_dim(), dtype, q, k_.TransposedFrom(tile.first_key), 0.0F, DType::kF32,
           scores, columns);
    Matmul(rows, columns, call_.value_dim(), dtype, dout, v_.TransposedFrom(tile.first_key), 0.0F,
           DType::kF32, gradients, columns);
    for (int64_t row = 0; row < rows; ++row) {
      GradientOfRow(scores + row * columns, gradients + row * columns, call_.plan.SeenBy(tile, row), columns,
                    call_.problem.scale, lse_[tile.first_row + row], delta_[tile.first_row + row]);
    }
    const T* weights = Narrow<T>(scores, rows * columns, narrow_weights);
    const T* score_gradients = Narrow<T>(gradients, rows * columns, narrow_gradients);
    const int64_t key = tile.first_key - key_tile_.first;
    Matmul(columns, call_.value_dim(), rows, dtype, {weights, columns, true}, dout, key_beta, DType::kF32,
           sums.dv + key * call_.value_dim(), call_.value_dim());
    Matmul(columns, call_.head_dim(), rows, dtype, {score_gradients, columns, true}, q, key_beta, DType::kF32,
           sums.dk + key * call_.head_dim(), call_.head_dim());
    Matmul(rows, call_.head_dim(), columns, dtype, {score_gradients, columns}, k_.From(tile.first_key), 1.0F,
           DType::kF32, dq_.Row(tile.first_row), dq_.stride);
  }

  const BackwardCall& call_;
  const KeyTile& key_tile_;
  HeadRows<T> q_, k_, v_, dout_;
  HeadRows<float> dq_;
  const float *lse_, *delta_;
};

template <typename T>
void AddKeyTile(const BackwardCall& call, int64_t index, const KeyTileSums& sums) {
  const KeyTile& key_tile = call.plan.key_tiles()[static_cast<size_t>(index)];
  ParallelFor(call.batches() * call.heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      HeadBackward<T>(call, key_tile, item / call.heads(), item % call.heads())
          .Run(call.plan.TilesOf(index), sums.Of(item));
    }
  });
}

// target *= beta; a beta of 0 clears.
void ScaleTokens(const TensorView& target, float beta) {
  if (beta == 1.0F) return;
  const int64_t heads = target.shape[2];
  const int64_t dim = target.shape[3];
  ParallelFor(target.shape[0] * target.shape[1], RowGrain(heads * dim), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        float* row = HeadOf<float>(target, token / target.shape[1], head).Row(token % target.shape[1]);
        for (int64_t i = 0; i < dim; ++i) row[i] = beta == 0.0F ? 0.0F : row[i] * beta;
      }
    }
  });
}

}  // namespace

void AttentionBackward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                       absl::Span<const KeyBlock> keys, const TensorView& lse, const TensorView& delta,
                       const TensorView& dout, const TensorView& dq, float dq_beta,
                       absl::Span<const KeyGradients> gradients, float key_beta) {
  const TileSize size = ChooseTileSize(q.shape[1]);
  const AttentionPlan plan(problem.mask, q_runs, RunsOf(keys), size, AttentionPlan::Order::kByKeyTile);
  const Tensor wide_dq = dq.dtype == DType::kF32 ? Tensor::Borrow(dq) : Tensor::Empty(DType::kF32, q.shape);
  ScaleTokens(wide_dq.view(), dq_beta);
  const BackwardCall call = {problem, plan, size, q, keys, lse, delta, dout, wide_dq.view()};
  const KeyTileSums sums(problem, call.batches(), call.heads(), size.columns, call.head_dim(),
                         call.value_dim());
  for (size_t i = 0; i < plan.key_tiles().size(); ++i) {
    const KeyTile& key_tile = plan.key_tiles()[i];
    WithElementType(
        q.dtype, [&](auto element) { AddKeyTile<decltype(element)>(call, static_cast<int64_t>(i), sums); });
    sums.Store(key_tile, gradients[static_cast<size_t>(key_tile.block)], key_beta);
  }
  if (dq.dtype != DType::kF32) {
    WEFT_CHECK(StridedCopy(wide_dq.view(), dq).ok(), "dq has another shape than q");
  }
}

}  // namespace weft
