#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/scratch.h"
#include "src/nn/sparse/selected_keys.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {
namespace {

// Overwrites the scores of one query head with exp(scale * score - maximum). Returns the sum and the
// log-sum-exp.
struct Softmax {
  float sum, lse;
};
Softmax SoftmaxOf(float* __restrict scores, int64_t count, float scale) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  if (count == 0) return {0.0F, kLowest};
  const float maximum = LaneMax(count, kLowest, [=](int64_t i) { return scores[i]; }) * scale;
  const float sum = LaneSum(count, [=](int64_t i) {
    const float weight = Exp(scores[i] * scale - maximum);
    scores[i] = weight;
    return weight;
  });
  return {sum, maximum + std::log(sum)};
}

// Arguments of one SparseAttentionForward, shared by all queries.
struct ForwardCall {
  const AttentionProblem& problem;
  const TensorView& q;
  const KeySelection& selection;
  std::vector<TensorView> k, v;
  const TensorView& out;
  const TensorView& lse;

  int64_t queries() const { return q.shape[1]; }
  int64_t heads() const { return q.shape[2]; }
  int64_t head_dim() const { return q.shape[3]; }
  int64_t value_dim() const { return out.shape[3]; }
};

void StoreHead(const ForwardCall& call, int64_t batch, int64_t query, int64_t head, const float* sums,
               Softmax softmax) {
  const float inverse = softmax.sum > 0.0F ? 1.0F / softmax.sum : 0.0F;
  WithElementType(call.out.dtype, [&](auto element) {
    using Out = decltype(element);
    Out* out = TokenHead<Out>(call.out, batch, query, head);
    for (int64_t i = 0; i < call.value_dim(); ++i) out[i] = Round<Out>(sums[i] * inverse);
  });
  StatisticsOf(call.lse, batch, head)[query] = softmax.lse;
}

// Forward of the query heads that read one kv head, for one query.
template <typename T>
void AttendToSelected(const ForwardCall& call, const KeyRows<T>& k, const KeyRows<T>& v, int64_t batch,
                      int64_t query, HeadRange heads) {
  static thread_local Scratch q_memory, score_memory, sum_memory;
  static thread_local LocatedRows located;
  static thread_local std::vector<Softmax> softmax;
  const SelectedKeys selected = SelectedKeysOf(call.selection, batch, query);
  const int64_t rows = heads.end - heads.first;
  const int64_t key_dim = PaddedRow(call.head_dim());
  const int64_t value_dim = PaddedRow(call.value_dim());
  float* q = q_memory.Floats(rows * key_dim);
  float* sums = sum_memory.Floats(rows * value_dim);
  const RowMatrix scores = {score_memory.Floats(rows * selected.count), rows, selected.count, selected.count};
  GatherHeads(TokenHead<T>(call.q, batch, query, heads.first), call.q.strides[2], rows, call.head_dim(), q);
  ForEachKeyBlock(selected, [&](int64_t first, int64_t count) {
    k.Locate(selected.numbers + first, count, located);
    RowTimesKeys(q, located.pointers(), key_dim, scores.Columns(first, count));
  });
  softmax.resize(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    softmax[static_cast<size_t>(row)] = SoftmaxOf(scores.Row(row), selected.count, call.problem.scale);
  }
  std::fill_n(sums, rows * value_dim, 0.0F);
  ForEachKeyBlock(selected, [&](int64_t first, int64_t count) {
    v.Locate(selected.numbers + first, count, located);
    AddSumOfKeys(scores.Columns(first, count), located.pointers(), value_dim, sums);
  });
  for (int64_t row = 0; row < rows; ++row) {
    StoreHead(call, batch, query, heads.first + row, sums + row * value_dim,
              softmax[static_cast<size_t>(row)]);
  }
}

// Queries [begin, end) of one sequence, with all kv heads.
template <typename T>
void AttendQueries(const ForwardCall& call, int64_t batch, int64_t begin, int64_t end) {
  const int64_t first_head = KvHead(call.problem, 0);
  const int64_t end_head = KvHead(call.problem, call.heads() - 1) + 1;
  std::vector<KeyRows<T>> k, v;
  for (int64_t head = first_head; head < end_head; ++head) {
    k.emplace_back(call.k, batch, head);
    v.emplace_back(call.v, batch, head);
  }
  for (int64_t query = begin; query < end; ++query) {
    for (int64_t head = first_head; head < end_head; ++head) {
      const auto at = static_cast<size_t>(head - first_head);
      AttendToSelected<T>(call, k[at], v[at], batch, query, QueryHeadsOf(call.problem, call.heads(), head));
    }
  }
}

}  // namespace

void SparseAttentionForward(const AttentionProblem& problem, const TensorView& q,
                            const KeySelection& selection, absl::Span<const KeyBlock> keys,
                            const TensorView& out, const TensorView& lse) {
  WEFT_CHECK(problem.scale > 0.0F, "attention scores need a positive scale");
  const ForwardCall call = {problem, q,  selection, ViewsOf(keys, &KeyBlock::k), ViewsOf(keys, &KeyBlock::v),
                            out,     lse};
  if (call.heads() == 0) return;
  WithElementType(q.dtype, [&](auto element) {
    for (int64_t batch = 0; batch < q.shape[0]; ++batch) {
      ParallelFor(call.queries(), 16, [&](int64_t begin, int64_t end) {
        AttendQueries<decltype(element)>(call, batch, begin, end);
      });
    }
  });
}

}  // namespace weft
