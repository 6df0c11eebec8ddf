#include <algorithm>
#include <cmath>

#include "src/nn/attention/attention_panels.h"
#include "src/nn/attention/attention_plan.h"
#include "src/nn/attention/head_rows.h"
#include "src/nn/attention/masked_row.h"
#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"
#include "weft/core/topology.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/matmul.h"

// Note [Online softmax]
// Problem: the softmax of a query runs over all its keys, but only one tile of scores exists at a time.
// Rule: forward keeps for every query the running maximum m of the scores, the sum l of exp(score - m), and
//   the sum of exp(score - m) V (Dao et al., "FlashAttention", 2022, section 3.1). If a later tile raises m,
//   both sums are multiplied by exp(m_old - m_new). At the end out = sum / l and lse = m + log l.
// A query without a visible key has m = -infinity and l = 0.

namespace weft {
namespace {

// Converts one row of a tile from scores to weights exp(score - maximum), in the dtype of the factors, with
// zeros in hidden columns. Updates `maximum` and `sum`. Returns the factor for the query's sums over earlier
// tiles.
template <typename T>
float SoftmaxRow(float* __restrict scores, absl::Span<const ColumnSpan> visible, int64_t columns, float scale,
                 float& maximum, float& sum, T* weights) {
  const ColumnSpan range = ComputedColumns(visible, columns);
  const int64_t count = range.end - range.begin;
  float* __restrict row = scores + range.begin;
  const float highest = LaneMax(count, kMaskedScore, [row](int64_t i) { return row[i]; });
  const float raised = std::max(maximum, highest * scale);
  const float added = LaneSum(count, [row, scale, raised](int64_t i) {
    const float weight = Exp(row[i] * scale - raised);
    row[i] = weight;
    return weight;
  });
  ZeroOutside(scores, range, columns);
  if constexpr (!std::is_same_v<T, float>) {
    for (int64_t i = 0; i < columns; ++i) weights[i] = Round<T>(scores[i]);
  }
  if (visible.empty()) return 1.0F;
  const float correction = Exp(maximum - raised);
  sum = sum * correction + added;
  maximum = raised;
  return correction;
}

// Arguments of one AttentionForward, shared by all row blocks.
struct ForwardCall {
  const AttentionProblem& problem;
  const BatchPlans& plans;
  TileSize size;
  const TensorView& q;
  absl::Span<const KeyBlock> keys;
  const TensorView& out;
  const TensorView& lse;

  int64_t value_dim() const { return out.shape[3]; }
};

// Forward of one row block of one head over all keys.
template <typename T>
class RowBlockForward {
 public:
  RowBlockForward(const ForwardCall& call, int64_t batch, int64_t head, int64_t row_block)
      : call_(call),
        plan_(call.plans.Of(batch)),
        batch_(batch),
        head_(head),
        row_block_(row_block),
        first_row_(plan_.FirstRow(row_block)),
        rows_(plan_.RowsOf(row_block)) {
    static thread_local Scratch score_memory;
    static thread_local Scratch weight_memory;
    static thread_local Scratch row_memory;
    const int64_t tile = call.size.rows * call.size.columns;
    scores_ = score_memory.Floats(tile);
    // In fp32 the weights overwrite the scores.
    weights_ = std::is_same_v<T, float>
                   ? reinterpret_cast<T*>(scores_)
                   : static_cast<T*>(weight_memory.Bytes(static_cast<size_t>(tile) * sizeof(T)));
    out_ = row_memory.Floats(rows_ * (call.value_dim() + 2));
    maximum_ = out_ + rows_ * call.value_dim();
    sum_ = maximum_ + rows_;
  }

  void Run() {
    std::fill_n(maximum_, rows_, kMaskedScore);
    std::fill_n(sum_, rows_, 0.0F);
    if (!plan_.InitializesRows(row_block_)) std::fill_n(out_, rows_ * call_.value_dim(), 0.0F);
    for (const AttentionTile& tile : plan_.TilesOf(row_block_)) AddTile(tile);
    Store();
  }

 private:
  void AddTile(const AttentionTile& tile) {
    const KeyBlock& keys = call_.keys[static_cast<size_t>(plan_.BlockOf(tile))];
    const int64_t kv_head = KvHead(call_.problem, head_);
    Matmul(tile.rows, tile.columns, call_.q.shape[3], kDTypeOf<T>,
           HeadOf<T>(call_.q, batch_, head_).From(tile.first_row),
           HeadOf<T>(keys.k, batch_, kv_head).TransposedFrom(tile.first_key), 0.0F, DType::kF32, scores_,
           tile.columns);
    MaskHiddenScores(plan_, tile, scores_);
    const int64_t offset = tile.first_row - first_row_;
    for (int64_t row = 0; row < tile.rows; ++row) {
      const float correction = SoftmaxRow(scores_ + row * tile.columns, plan_.VisibleColumns(tile, row),
                                          tile.columns, call_.problem.scale, maximum_[offset + row],
                                          sum_[offset + row], weights_ + row * tile.columns);
      if (!tile.initializes_rows && correction != 1.0F) ScaleRow(offset + row, correction);
    }
    Matmul(tile.rows, call_.value_dim(), tile.columns, kDTypeOf<T>, {weights_, tile.columns},
           HeadOf<T>(keys.v, batch_, kv_head).From(tile.first_key), tile.initializes_rows ? 0.0F : 1.0F,
           DType::kF32, out_ + offset * call_.value_dim(), call_.value_dim());
  }

  void ScaleRow(int64_t row, float factor) {
    float* values = out_ + row * call_.value_dim();
    for (int64_t i = 0; i < call_.value_dim(); ++i) values[i] *= factor;
  }

  void Store() const {
    WithElementType(call_.out.dtype, [&](auto element) {
      using Out = decltype(element);
      const int64_t dim = call_.value_dim();
      const HeadRows<Out> out = HeadOf<Out>(call_.out, batch_, head_);
      for (int64_t row = 0; row < rows_; ++row) {
        const float inverse = sum_[row] > 0.0F ? 1.0F / sum_[row] : 0.0F;
        const float* __restrict values = out_ + row * dim;
        Out* __restrict target = out.Row(first_row_ + row);
        for (int64_t i = 0; i < dim; ++i) target[i] = Round<Out>(values[i] * inverse);
      }
    });
    float* lse = StatisticsOf(call_.lse, batch_, head_) + first_row_;
    for (int64_t row = 0; row < rows_; ++row) lse[row] = maximum_[row] + std::log(sum_[row]);
  }

  const ForwardCall& call_;
  const AttentionPlan& plan_;
  int64_t batch_, head_, row_block_, first_row_, rows_;
  float* scores_;
  T* weights_;
  float *out_, *maximum_, *sum_;
};

}  // namespace

float DefaultScale(int64_t head_dim) { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }

void AttentionForward(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                      absl::Span<const KeyBlock> keys, const TensorView& out, const TensorView& lse) {
  WEFT_CHECK(problem.scale > 0.0F, "attention scores need a positive scale");
  if (const panels::PanelUnit* unit = AttentionUnit(q)) {
    AttentionForwardByPanels(*unit, problem, q, q_runs, keys, out, lse);
    return;
  }
  const TileSize size = TileSizeFor(HostTopology().core_cache_bytes);
  const BatchPlans plans(problem.mask, problem.pair_mask.get(), q.shape[0], q_runs, RunsOf(keys), size,
                         AttentionPlan::Order::kByRowBlock);
  const ForwardCall call = {problem, plans, size, q, keys, out, lse};
  const int64_t heads = q.shape[2];
  const int64_t row_blocks = plans.first().row_blocks();
  WithElementType(q.dtype, [&](auto element) {
    using T = decltype(element);
    ParallelFor(q.shape[0] * heads * row_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row_block = item % row_blocks;
        const int64_t head = item / row_blocks % heads;
        RowBlockForward<T>(call, item / row_blocks / heads, head, row_block).Run();
      }
    });
  });
}

}  // namespace weft
