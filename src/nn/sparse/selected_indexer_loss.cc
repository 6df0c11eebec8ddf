#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/scratch.h"
#include "src/nn/sparse/index_key_sums.h"
#include "src/nn/sparse/selected_keys.h"
#include "weft/core/parallel.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

// Note [Gradients of the indexer's loss]
// With target p, index scores s and softmax(s) = r, the loss is sum p (log p - log r). Its gradient by a
// score is ds = r sum(p) - p. A score is sum over heads h of w_h ReLU(a_h) with a_h = q_h . k, so that
//   dw_h = sum over keys of ds ReLU(a_h),   dq_h = sum over keys of c_h k,   dk = sum over heads of c_h q_h,
// where c_h = ds w_h where a_h > 0, and 0 elsewhere.

namespace weft {
namespace {

// KL divergence of one query. Writes `factor` times its gradient by the scores.
double DivergenceOfRow(const float* __restrict target, const float* __restrict scores, int64_t count,
                       float factor, float* __restrict gradients) {
  if (count == 0) return 0.0;
  const float maximum =
      LaneMax(count, -std::numeric_limits<float>::infinity(), [=](int64_t i) { return scores[i]; });
  const float sum = LaneSum(count, [=](int64_t i) {
    gradients[i] = Exp(scores[i] - maximum);
    return gradients[i];
  });
  const float mass = LaneSum(count, [=](int64_t i) { return target[i]; });
  const float lse = maximum + std::log(sum);
  double divergence = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    if (target[i] > 0.0F) {
      divergence +=
          static_cast<double>(target[i]) * static_cast<double>(std::log(target[i]) - (scores[i] - lse));
    }
    gradients[i] = factor * (gradients[i] / sum * mass - target[i]);
  }
  return divergence;
}

// Overwrites the products a of one index head by the coefficients c, given the gradients of the scores.
// Returns the gradient of the head's weight.
float CoefficientsOfHead(const float* __restrict score_gradients, float weight, int64_t count,
                         float* __restrict products) {
  return LaneSum(count, [=](int64_t i) {
    const bool active = products[i] > 0.0F;
    const float positive = active ? products[i] : 0.0F;
    products[i] = active ? score_gradients[i] * weight : 0.0F;
    return score_gradients[i] * positive;
  });
}

// Arguments of one SelectedIndexerLoss, shared by all queries.
struct LossCall {
  const KeySelection& selection;
  const TensorView& target;
  const IndexQueries& index;
  std::vector<TensorView> keys;  // With one head.
  float factor;
  const IndexerGradients& gradients;

  int64_t heads() const { return index.q.shape[2]; }
  int64_t dim() const { return index.q.shape[3]; }
};

// Zeroed sums of the gradients of the weights of one query. Valid until the thread's next call.
std::vector<float>& WeightSums(int64_t heads) {
  static thread_local std::vector<float> sums;
  sums.assign(static_cast<size_t>(heads), 0.0F);
  return sums;
}

void StoreQueryGradients(const IndexerGradients& gradients, int64_t batch, int64_t query,
                         const float* dq_sums, const std::vector<float>& dweights_sums) {
  const TensorView& dq = gradients.dq;
  const TensorView& dweights = gradients.dweights;
  WithElementType(dq.dtype, [&](auto element) {
    using Gradient = decltype(element);
    for (int64_t head = 0; head < dq.shape[2]; ++head) {
      StoreSumRun(dq_sums + head * PaddedRow(dq.shape[3]), 0.0F, dq.shape[3],
                  TokenHead<Gradient>(dq, batch, query, head));
    }
  });
  WithElementType(dweights.dtype, [&](auto element) {
    using Gradient = decltype(element);
    StoreSumRun(dweights_sums.data(), 0.0F, dweights.shape[2],
                dweights.As<Gradient>() + batch * dweights.strides[0] + query * dweights.strides[1]);
  });
}

// Gradients of one query, given those of its scores. Adds to the sums of its part.
template <typename T>
void AddQueryGradients(const LossCall& call, const KeyRows<T>& index_keys, int64_t batch, int64_t query,
                       const float* score_gradients, float* key_sums) {
  static thread_local Scratch q_memory, dq_memory, product_memory;
  static thread_local LocatedRows located;
  const SelectedKeys selected = SelectedKeysOf(call.selection, batch, query);
  const int64_t row = PaddedRow(call.dim());
  float* q = q_memory.Floats(call.heads() * row);
  float* dq = dq_memory.Floats(call.heads() * row);
  std::vector<float>& dweights = WeightSums(call.heads());
  GatherHeads(TokenHead<T>(call.index.q, batch, query, 0), call.index.q.strides[2], call.heads(), call.dim(),
              q);
  std::fill_n(dq, call.heads() * row, 0.0F);
  const TensorView& weights = call.index.weights;
  const T* weight = weights.As<T>() + batch * weights.strides[0] + query * weights.strides[1];
  ForEachKeyBlock(selected, [&](int64_t first, int64_t count) {
    const RowMatrix products = {product_memory.Floats(call.heads() * kKeyBlock), call.heads(), count,
                                kKeyBlock};
    index_keys.Locate(selected.numbers + first, count, located);
    float* sums[kKeyBlock];
    for (int64_t j = 0; j < count; ++j) sums[j] = key_sums + selected.numbers[first + j] * row;
    RowTimesKeys(q, located.pointers(), row, products);
    for (int64_t head = 0; head < call.heads(); ++head) {
      dweights[static_cast<size_t>(head)] +=
          CoefficientsOfHead(score_gradients + first, Load(weight[head]), count, products.Row(head));
    }
    AddSumOfRows(products, q, row, sums);
    AddSumOfKeys(products, located.pointers(), row, dq);
  });
  StoreQueryGradients(call.gradients, batch, query, dq, dweights);
}

template <typename T>
double LossOfQuery(const LossCall& call, const KeyRows<T>& index_keys, int64_t batch, int64_t query,
                   float* key_sums) {
  static thread_local Scratch gradient_memory;
  const SelectedKeys selected = SelectedKeysOf(call.selection, batch, query);
  float* score_gradients = gradient_memory.Floats(selected.count);
  const float* target =
      call.target.As<float>() + batch * call.target.strides[0] + query * call.target.strides[1];
  const double loss = DivergenceOfRow(target, selected.scores, selected.count, call.factor, score_gradients);
  AddQueryGradients<T>(call, index_keys, batch, query, score_gradients, key_sums);
  return loss;
}

}  // namespace

double SelectedIndexerLoss(const KeySelection& selection, const TensorView& target, const IndexQueries& index,
                           absl::Span<const KeyBlock> keys, IndexKeys index_keys, float factor,
                           const IndexerGradients& gradients) {
  const LossCall call = {selection, target, index, WithOneHead(index_keys), factor, gradients};
  const int64_t queries = index.q.shape[1];
  const IndexKeySums sums(index.q.shape[0], KeyCount(keys), call.dim());
  std::vector<double> losses(static_cast<size_t>(sums.Parts()));
  WithElementType(index.q.dtype, [&](auto element) {
    using T = decltype(element);
    ParallelFor(sums.Parts(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t batch = part / sums.PartsOfSequence();
        const KeyRows<T> rows(call.keys, batch, 0);
        for (int64_t query = sums.Begin(part, queries); query < sums.End(part, queries); ++query) {
          losses[static_cast<size_t>(part)] += LossOfQuery<T>(call, rows, batch, query, sums.Of(part));
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
