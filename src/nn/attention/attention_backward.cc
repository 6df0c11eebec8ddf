#include <algorithm>
#include <cmath>

#include "src/nn/attention/attention_panels.h"
#include "src/nn/attention/attention_plan.h"
#include "src/nn/attention/head_rows.h"
#include "src/nn/attention/key_tile_accumulator.h"
#include "src/nn/attention/masked_row.h"
#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor.h"
#include "weft/core/topology.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

// Note [Attention backward]
// Backward recomputes the weights P = exp(score - lse) from the saved lse, without running state. With
// delta = sum(dO * O) for each query (FlashAttention, appendix B.2):
//   dV += P^T dO,   dS = P * (dO V^T - delta) * scale,   dK += dS^T Q,   dQ += dS K.
// Key tiles are processed one after the other, and the query heads of a key tile in parallel. Each query head
// visits its rows, accumulates its own dK and dV of the tile, and adds to its own dQ. Afterwards the dK and
// dV of the query heads that share a kv head are added up, in order.
// Threads therefore share no accumulator, the order of additions does not depend on the number of threads,
// and the accumulators of a query head take the memory of one key tile instead of all keys.

namespace weft {
namespace {

// For one row of a tile, overwrites the scores with the weights P, and the gradients of the weights with
// those of the scores.
void ScoreGradientsOfRow(float* __restrict scores, float* __restrict gradients,
                         absl::Span<const ColumnSpan> visible, int64_t columns, float scale, float lse,
                         float delta) {
  const ColumnSpan range = ComputedColumns(visible, columns);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float weight = Exp(scores[i] * scale - lse);
    scores[i] = weight;
    gradients[i] = weight * (gradients[i] - delta) * scale;
  }
  ZeroOutside(scores, range, columns);
  ZeroOutside(gradients, range, columns);
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

// Arguments of one AttentionBackward, shared by all heads and key tiles.
struct BackwardCall {
  const AttentionProblem& problem;
  const BatchPlans& plans;
  TileSize size;
  const TensorView& q;
  absl::Span<const KeyBlock> keys;
  const TensorView& lse;
  const TensorView& delta;
  const TensorView& dout;
  const TensorView& dq;  // f32, also if the caller's dq is bf16.
  float dq_beta;

  int64_t batches() const { return q.shape[0]; }
  int64_t heads() const { return q.shape[2]; }
  int64_t head_dim() const { return q.shape[3]; }
  int64_t value_dim() const { return dout.shape[3]; }
};

// Backward of one query head of one sequence with one key tile.
template <typename T>
class HeadBackward {
 public:
  HeadBackward(const BackwardCall& call, const KeyTile& key_tile, int64_t batch, int64_t head)
      : call_(call),
        plan_(call.plans.Of(batch)),
        key_tile_(key_tile),
        q_(HeadOf<T>(call.q, batch, head)),
        k_(HeadOf<T>(call.keys[static_cast<size_t>(key_tile.block)].k, batch, KvHead(call.problem, head))),
        v_(HeadOf<T>(call.keys[static_cast<size_t>(key_tile.block)].v, batch, KvHead(call.problem, head))),
        dout_(HeadOf<T>(call.dout, batch, head)),
        dq_(HeadOf<float>(call.dq, batch, head)),
        lse_(StatisticsOf(call.lse, batch, head)),
        delta_(StatisticsOf(call.delta, batch, head)) {}

  void Run(int64_t key_tile, const TileGradients& sums) const {
    if (!plan_.InitializesKeys(key_tile)) {
      ScaleRows(sums.dk, key_tile_.count, call_.head_dim(), sums.beta);
      ScaleRows(sums.dv, key_tile_.count, call_.value_dim(), sums.beta);
    }
    for (const AttentionTile& tile : plan_.TilesOf(key_tile)) AddTile(tile, sums);
  }

 private:
  void AddTile(const AttentionTile& tile, const TileGradients& sums) const {
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
    MaskHiddenScores(plan_, tile, scores);
    for (int64_t row = 0; row < rows; ++row) {
      ScoreGradientsOfRow(scores + row * columns, gradients + row * columns, plan_.VisibleColumns(tile, row),
                          columns, call_.problem.scale, lse_[tile.first_row + row],
                          delta_[tile.first_row + row]);
    }
    const T* weights = Narrow<T>(scores, rows * columns, narrow_weights);
    const T* score_gradients = Narrow<T>(gradients, rows * columns, narrow_gradients);
    const HeadRows<float> dk = sums.dk.Skip(tile.first_key - key_tile_.first);
    const HeadRows<float> dv = sums.dv.Skip(tile.first_key - key_tile_.first);
    const float key_beta = tile.initializes_keys ? sums.beta : 1.0F;
    Matmul(columns, call_.value_dim(), rows, dtype, {weights, columns, true}, dout, key_beta, DType::kF32,
           dv.data, dv.stride);
    Matmul(columns, call_.head_dim(), rows, dtype, {score_gradients, columns, true}, q, key_beta, DType::kF32,
           dk.data, dk.stride);
    Matmul(rows, call_.head_dim(), columns, dtype, {score_gradients, columns}, k_.From(tile.first_key),
           tile.initializes_rows ? call_.dq_beta : 1.0F, DType::kF32, dq_.Row(tile.first_row), dq_.stride);
  }

  const BackwardCall& call_;
  const AttentionPlan& plan_;
  const KeyTile& key_tile_;
  HeadRows<T> q_, k_, v_, dout_;
  HeadRows<float> dq_;
  const float *lse_, *delta_;
};

template <typename T>
void AccumulateKeyTile(const BackwardCall& call, int64_t index, const KeyTileAccumulator& accumulator) {
  const KeyTile& key_tile = call.plans.first().key_tiles()[static_cast<size_t>(index)];
  ParallelFor(call.batches() * call.heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / call.heads();
      const int64_t head = item % call.heads();
      HeadBackward<T>(call, key_tile, batch, head)
          .Run(index, accumulator.HeadGradients(key_tile, batch, head));
    }
  });
  accumulator.Store(key_tile);
}

// Initializes dq in the row blocks in which no tile initializes it: dq *= dq_beta.
void ScaleQueryGradients(const BackwardCall& call) {
  ParallelFor(call.batches() * call.heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const AttentionPlan& plan = call.plans.Of(item / call.heads());
      const HeadRows<float> dq = HeadOf<float>(call.dq, item / call.heads(), item % call.heads());
      for (int64_t row_block = 0; row_block < plan.row_blocks(); ++row_block) {
        if (plan.InitializesRows(row_block)) continue;
        ScaleRows(dq.Skip(plan.FirstRow(row_block)), plan.RowsOf(row_block), call.head_dim(), call.dq_beta);
      }
    }
  });
}

}  // namespace

void AttentionBackward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                       absl::Span<const KeyBlock> keys, const AttentionBackwardInputs& inputs,
                       const AttentionGradients& gradients) {
  WEFT_CHECK(problem.scale > 0.0F, "attention scores need a positive scale");
  if (const panels::PanelUnit* unit = AttentionUnit(q)) {
    AttentionBackwardByPanels(*unit, problem, q, q_runs, keys, inputs, gradients);
    return;
  }
  const TileSize size = TileSizeFor(HostTopology().core_cache_bytes);
  const BatchPlans plans(problem.mask, problem.pair_mask.get(), q.shape[0], q_runs, RunsOf(keys), size,
                         AttentionPlan::Order::kByKeyTile);
  const TensorView& dq = gradients.dq;
  const Tensor wide_dq = dq.dtype == DType::kF32 ? Tensor::Borrow(dq) : Tensor::Empty(DType::kF32, q.shape);
  const BackwardCall call = {
      problem,          plans, size, q, keys, inputs.lse, inputs.delta, inputs.dout, wide_dq.view(),
      gradients.dq_beta};
  ScaleQueryGradients(call);
  const KeyTileAccumulator accumulator(problem, q, gradients.keys, gradients.key_beta,
                                       plans.first().MaxTileKeys());
  WithElementType(q.dtype, [&](auto element) {
    for (size_t i = 0; i < plans.first().key_tiles().size(); ++i) {
      AccumulateKeyTile<decltype(element)>(call, static_cast<int64_t>(i), accumulator);
    }
  });
  if (dq.dtype != DType::kF32) {
    WEFT_CHECK(StridedCopy(wide_dq.view(), dq).ok(), "dq and q have different shapes");
  }
}

}  // namespace weft
