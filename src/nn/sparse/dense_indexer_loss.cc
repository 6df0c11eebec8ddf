#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/nn/attention/attention_plan.h"
#include "src/nn/attention/masked_row.h"
#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/scratch.h"
#include "src/nn/sparse/index_key_sums.h"
#include "src/nn/sparse/selected_keys.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/nn/matmul.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

// Note [Dense indexer loss]
// Each row block visits its tiles twice. The first pass finds the log-sum-exp of each query's index scores,
// with running maxima (Note [Online softmax]). The second pass computes the scores again, the target from
// the dense attention's scores and their log-sum-exp, and the gradients (Note [Gradients of the indexer's
// loss]). The target sums to 1 for a query with visible keys.
// A part of the row blocks adds to its own sums of dK: see IndexKeySums.

namespace weft {
namespace {

constexpr TileSize kTile = {64, 256};
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Arguments of one DenseIndexerLoss, shared by all row blocks.
struct LossCall {
  const AttentionProblem& problem;
  const AttentionPlan& plan;
  const TensorView& q;
  absl::Span<const KeyBlock> keys;
  const TensorView& lse;
  const IndexQueries& index;
  std::vector<TensorView> index_keys;     // With one head.
  std::vector<int64_t> numbers_of_block;  // Number of the first key of each block.
  float factor;
  const IndexerGradients& gradients;

  int64_t heads() const { return index.q.shape[2]; }
  int64_t dim() const { return index.q.shape[3]; }
};

// Loss and gradients of one row block of one sequence.
template <typename T>
class RowBlockLoss {
 public:
  RowBlockLoss(const LossCall& call, int64_t batch, int64_t row_block, float* key_sums, int64_t key_stride)
      : call_(call),
        batch_(batch),
        row_block_(row_block),
        first_row_(call.plan.FirstRow(row_block)),
        rows_(call.plan.RowsOf(row_block)),
        key_sums_(key_sums),
        key_stride_(key_stride) {
    static thread_local Scratch product_memory, score_memory, target_memory, narrow_memory, row_memory;
    const int64_t tile = kTile.rows * kTile.columns;
    products_ = product_memory.Floats(tile * std::max<int64_t>(1, call.heads()));
    scores_ = score_memory.Floats(tile);
    targets_ = target_memory.Floats(tile);
    narrow_ = static_cast<T*>(narrow_memory.Bytes(static_cast<size_t>(tile) * sizeof(T)));
    maximum_ = row_memory.Floats(rows_ * (2 + call.heads() * (1 + call.dim())));
    sum_ = maximum_ + rows_;
    dweights_ = sum_ + rows_;
    dq_ = dweights_ + rows_ * call.heads();
  }

  double Run() {
    std::fill_n(maximum_, rows_, kNoScore);
    std::fill_n(sum_, rows_, 0.0F);
    std::fill_n(dweights_, rows_ * call_.heads() * (1 + call_.dim()), 0.0F);
    for (const AttentionTile& tile : call_.plan.TilesOf(row_block_)) AddToSoftmax(tile);
    double loss = 0.0;
    for (const AttentionTile& tile : call_.plan.TilesOf(row_block_)) loss += AddGradients(tile);
    Store();
    return loss;
  }

 private:
  // Writes the products of the index heads, [heads, rows, columns], and the index scores [rows, columns].
  void ComputeScores(const AttentionTile& tile) {
    const int64_t elements = tile.rows * tile.columns;
    std::fill_n(scores_, elements, 0.0F);
    for (int64_t head = 0; head < call_.heads(); ++head) {
      float* products = products_ + head * elements;
      Matmul(tile.rows, tile.columns, call_.dim(), kDTypeOf<T>,
             HeadOf<T>(call_.index.q, batch_, head).From(tile.first_row),
             IndexKeysOf(tile).TransposedFrom(tile.first_key), 0.0F, DType::kF32, products, tile.columns);
      for (int64_t row = 0; row < tile.rows; ++row) {
        const float weight = Weight(tile.first_row + row, head);
        for (int64_t i = row * tile.columns; i < (row + 1) * tile.columns; ++i) {
          scores_[i] += weight * std::max(products[i], 0.0F);
        }
      }
    }
    MaskHiddenScores(call_.plan, tile, scores_);
  }

  void AddToSoftmax(const AttentionTile& tile) {
    ComputeScores(tile);
    for (int64_t row = 0; row < tile.rows; ++row) {
      const ColumnSpan range = ComputedColumns(call_.plan.VisibleColumns(tile, row), tile.columns);
      const float* scores = scores_ + row * tile.columns + range.begin;
      const int64_t count = range.end - range.begin;
      if (count == 0) continue;
      const int64_t at = tile.first_row + row - first_row_;
      const float raised =
          std::max(maximum_[at], LaneMax(count, kNoScore, [=](int64_t i) { return scores[i]; }));
      const float added = LaneSum(count, [=](int64_t i) { return Exp(scores[i] - raised); });
      sum_[at] = sum_[at] * Exp(maximum_[at] - raised) + added;
      maximum_[at] = raised;
    }
  }

  // Writes the sum over heads of the attention weights, divided by the number of heads.
  void ComputeTargets(const AttentionTile& tile) {
    const int64_t elements = tile.rows * tile.columns;
    const int64_t heads = call_.q.shape[2];
    std::fill_n(targets_, elements, 0.0F);
    // The products of the index heads are needed afterwards; the narrow copies are not needed yet.
    static thread_local Scratch attention_memory;
    float* attention = attention_memory.Floats(elements);
    const KeyBlock& keys = call_.keys[static_cast<size_t>(call_.plan.BlockOf(tile))];
    for (int64_t head = 0; head < heads; ++head) {
      Matmul(tile.rows, tile.columns, call_.q.shape[3], kDTypeOf<T>,
             HeadOf<T>(call_.q, batch_, head).From(tile.first_row),
             HeadOf<T>(keys.k, batch_, KvHead(call_.problem, head)).TransposedFrom(tile.first_key), 0.0F,
             DType::kF32, attention, tile.columns);
      MaskHiddenScores(call_.plan, tile, attention);
      const float* lse = StatisticsOf(call_.lse, batch_, head) + tile.first_row;
      for (int64_t row = 0; row < tile.rows; ++row) {
        const ColumnSpan range = ComputedColumns(call_.plan.VisibleColumns(tile, row), tile.columns);
        for (int64_t i = row * tile.columns + range.begin; i < row * tile.columns + range.end; ++i) {
          targets_[i] += Exp(attention[i] * call_.problem.scale - lse[row]);
        }
      }
    }
    const float factor = 1.0F / static_cast<float>(std::max<int64_t>(1, heads));
    for (int64_t i = 0; i < elements; ++i) targets_[i] *= factor;
  }

  // Overwrites the scores of one row by their gradients. Returns the row's part of the loss.
  double ScoreGradientsOfRow(const AttentionTile& tile, int64_t row) {
    const ColumnSpan range = ComputedColumns(call_.plan.VisibleColumns(tile, row), tile.columns);
    const int64_t at = tile.first_row + row - first_row_;
    float* __restrict scores = scores_ + row * tile.columns;
    const float* __restrict targets = targets_ + row * tile.columns;
    const float lse = maximum_[at] + std::log(sum_[at]);
    double loss = 0.0;
    for (int64_t i = range.begin; i < range.end; ++i) {
      if (targets[i] > 0.0F) {
        loss +=
            static_cast<double>(targets[i]) * static_cast<double>(std::log(targets[i]) - (scores[i] - lse));
      }
    }
    for (int64_t i = range.begin; i < range.end; ++i) {
      scores[i] = call_.factor * (Exp(scores[i] - lse) - targets[i]);
    }
    ZeroOutside(scores, range, tile.columns);
    return loss;
  }

  double AddGradients(const AttentionTile& tile) {
    ComputeScores(tile);
    ComputeTargets(tile);
    double loss = 0.0;
    for (int64_t row = 0; row < tile.rows; ++row) loss += ScoreGradientsOfRow(tile, row);
    for (int64_t head = 0; head < call_.heads(); ++head) AddHeadGradients(tile, head);
    return loss;
  }

  // Adds to the gradients of one index head, and to those of the keys.
  void AddHeadGradients(const AttentionTile& tile, int64_t head) {
    float* products = products_ + head * tile.rows * tile.columns;
    const int64_t offset = tile.first_row - first_row_;
    for (int64_t row = 0; row < tile.rows; ++row) {
      const float weight = Weight(tile.first_row + row, head);
      float* __restrict product = products + row * tile.columns;
      const float* __restrict gradients = scores_ + row * tile.columns;
      dweights_[(offset + row) * call_.heads() + head] +=
          LaneSum(tile.columns, [=](int64_t i) { return gradients[i] * std::max(product[i], 0.0F); });
      for (int64_t i = 0; i < tile.columns; ++i)
        product[i] = product[i] > 0.0F ? gradients[i] * weight : 0.0F;
    }
    const T* coefficients = Narrow(products, tile.rows * tile.columns);
    const int64_t number =
        call_.numbers_of_block[static_cast<size_t>(call_.plan.BlockOf(tile))] + tile.first_key;
    const int64_t dim = call_.dim();
    Matmul(tile.columns, dim, tile.rows, kDTypeOf<T>, {coefficients, tile.columns, true},
           HeadOf<T>(call_.index.q, batch_, head).From(tile.first_row), 1.0F, DType::kF32,
           key_sums_ + number * key_stride_, key_stride_);
    Matmul(tile.rows, dim, tile.columns, kDTypeOf<T>, {coefficients, tile.columns},
           IndexKeysOf(tile).From(tile.first_key), 1.0F, DType::kF32,
           dq_ + (offset * call_.heads() + head) * dim, call_.heads() * dim);
  }

  const T* Narrow(const float* values, int64_t count) {
    if constexpr (std::is_same_v<T, float>) {
      return values;
    } else {
      for (int64_t i = 0; i < count; ++i) narrow_[i] = Round<T>(values[i]);
      return narrow_;
    }
  }

  void Store() const {
    const TensorView& dq = call_.gradients.dq;
    const TensorView& dweights = call_.gradients.dweights;
    WithElementType(dq.dtype, [&](auto element) {
      using Gradient = decltype(element);
      for (int64_t i = 0; i < rows_ * call_.heads(); ++i) {
        StoreSumRun(dq_ + i * call_.dim(), 0.0F, call_.dim(),
                    TokenHead<Gradient>(dq, batch_, first_row_ + i / call_.heads(), i % call_.heads()));
      }
    });
    WithElementType(dweights.dtype, [&](auto element) {
      using Gradient = decltype(element);
      for (int64_t row = 0; row < rows_; ++row) {
        StoreSumRun(dweights_ + row * call_.heads(), 0.0F, call_.heads(),
                    dweights.As<Gradient>() + batch_ * dweights.strides[0] +
                        (first_row_ + row) * dweights.strides[1]);
      }
    });
  }

  HeadRows<T> IndexKeysOf(const AttentionTile& tile) const {
    return HeadOf<T>(call_.index_keys[static_cast<size_t>(call_.plan.BlockOf(tile))], batch_, 0);
  }
  float Weight(int64_t query, int64_t head) const {
    const TensorView& weights = call_.index.weights;
    return Load(weights.As<T>()[batch_ * weights.strides[0] + query * weights.strides[1] + head]);
  }

  const LossCall& call_;
  int64_t batch_, row_block_, first_row_, rows_;
  float* key_sums_;
  int64_t key_stride_;
  float *products_, *scores_, *targets_;
  T* narrow_;
  float *maximum_, *sum_, *dweights_, *dq_;
};

std::vector<int64_t> FirstNumbers(absl::Span<const KeyBlock> keys) {
  std::vector<int64_t> numbers;
  int64_t number = 0;
  for (const KeyBlock& block : keys) {
    numbers.push_back(number);
    number += block.k.shape[1];
  }
  return numbers;
}

}  // namespace

double DenseIndexerLoss(const AttentionProblem& problem, const TensorView& q, const TokenRuns& q_runs,
                        absl::Span<const KeyBlock> keys, const TensorView& lse, const IndexQueries& index,
                        IndexKeys index_keys, float factor, const IndexerGradients& gradients) {
  const AttentionPlan plan(problem.mask, q_runs, RunsOf(keys), kTile, AttentionPlan::Order::kByRowBlock);
  const LossCall call = {problem, plan,     q, keys, lse, index, WithOneHead(index_keys), FirstNumbers(keys),
                         factor,  gradients};
  const IndexKeySums sums(q.shape[0], KeyCount(keys), call.dim());
  std::vector<double> losses(static_cast<size_t>(sums.Parts()));
  WithElementType(q.dtype, [&](auto element) {
    using T = decltype(element);
    ParallelFor(sums.Parts(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t batch = part / sums.PartsOfSequence();
        for (int64_t block = sums.Begin(part, plan.row_blocks()); block < sums.End(part, plan.row_blocks());
             ++block) {
          losses[static_cast<size_t>(part)] +=
              RowBlockLoss<T>(call, batch, block, sums.Of(part), sums.row_stride()).Run();
        }
      }
    });
  });
  sums.Store(gradients.dk);
  double loss = 0.0;
  for (const double part : losses) loss += part;
  return loss;
}

}  // namespace weft
