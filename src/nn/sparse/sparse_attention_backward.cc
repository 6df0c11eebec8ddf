#include <algorithm>
#include <array>
#include <vector>

#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/scratch.h"
#include "src/nn/sparse/selected_keys.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

// Note [Sparse attention backward]
// The formulas are those of Note [Attention backward], with the rows of the selected keys. Each (sequence, kv
// head) has its own sums of dK and dV, in fp32. Threads divide the kv heads among them. So threads share no
// sum, and the order of additions does not depend on their number.
// The selected keys of a query lie anywhere. A block of queries therefore visits a tile of keys after the
// other: the tile's rows and sums come into the cache of a core once for all its queries.
// The target is a sum over all heads: each kv head writes its own part of a block of queries, and the parts
// are then added up in order.

namespace weft {
namespace {

// Queries between two sums of target parts.
constexpr int64_t kQueryBlock = 128;

// The number of keys of a tile: as many as fit into part of a core's cache, with their sums. More if a
// query selects so few of them that loading its own rows would take longer. Constants, so that the bits do
// not depend on the host.
int64_t TileKeys(int64_t row_floats, int64_t keys, int64_t width) {
  constexpr int64_t kTileFloats = int64_t{64} * 1024;
  constexpr int64_t kSelectedOfTile = 32;
  return std::max(
      {int64_t{1}, kTileFloats / (2 * row_floats), kSelectedOfTile * keys / std::max<int64_t>(1, width)});
}

// Arguments of one SparseAttentionBackward, shared by all queries.
struct BackwardCall {
  const AttentionProblem& problem;
  const TensorView& q;
  const KeySelection& selection;
  std::vector<TensorView> k, v;
  const TensorView& lse;
  const TensorView& delta;
  const TensorView& dout;
  const TensorView& dq;
  int64_t kv_heads;
  float* sums;          // [batch, kv_heads, keys, key_row() + value_row()]: dK and dV.
  float* target_parts;  // [batch, kv_heads, kQueryBlock, width]; null without a target.
  int64_t keys;
  int64_t tile_keys;

  int64_t queries() const { return q.shape[1]; }
  int64_t heads() const { return q.shape[2]; }
  int64_t head_dim() const { return q.shape[3]; }
  int64_t value_dim() const { return dout.shape[3]; }
  int64_t key_row() const { return PaddedRow(head_dim()); }
  int64_t value_row() const { return PaddedRow(value_dim()); }
};

// Overwrites the scores of one query head with the weights P, and the gradients of the weights with those
// of the scores.
void ScoreGradients(float* __restrict scores, float* __restrict gradients, int64_t count, float scale,
                    float lse, float delta) {
  for (int64_t i = 0; i < count; ++i) {
    const float weight = Exp(scores[i] * scale - lse);
    scores[i] = weight;
    gradients[i] = weight * (gradients[i] - delta) * scale;
  }
}

// sum = the sum of the rows.
void SumRows(const RowMatrix& rows, float* __restrict sum) {
  std::fill_n(sum, rows.keys, 0.0F);
  for (int64_t row = 0; row < rows.rows; ++row) {
    const float* __restrict values = rows.Row(row);
    for (int64_t i = 0; i < rows.keys; ++i) sum[i] += values[i];
  }
}

// Backward of the queries of one sequence with one kv head.
template <typename T>
class KvHeadBackward {
 public:
  KvHeadBackward(const BackwardCall& call, int64_t item)
      : call_(call),
        batch_(item / call.kv_heads),
        heads_(QueryHeadsOf(call.problem, call.heads(), item % call.kv_heads)),
        k_(call.k, batch_, item % call.kv_heads),
        v_(call.v, batch_, item % call.kv_heads),
        sums_(call.sums + item * call.keys * (call.key_row() + call.value_row())),
        target_parts_(call.target_parts == nullptr
                          ? nullptr
                          : call.target_parts + item * kQueryBlock * call.selection.width()) {}

  // Queries [begin, end), at most kQueryBlock, tile of keys by tile.
  void Run(int64_t begin, int64_t end) const {
    static thread_local Scratch memory;
    std::array<Query, kQueryBlock> queries;
    const int64_t query_floats = Rows() * (2 * call_.key_row() + call_.value_row());
    float* floats = memory.Floats((end - begin) * query_floats);
    for (int64_t i = begin; i < end; ++i) {
      queries[static_cast<size_t>(i - begin)] = Begin(i, floats + (i - begin) * query_floats);
    }
    for (int64_t tile = 0; tile < call_.keys; tile += call_.tile_keys) {
      for (int64_t i = 0; i < end - begin; ++i)
        AddTile(queries[static_cast<size_t>(i)], tile + call_.tile_keys);
    }
    for (int64_t i = 0; i < end - begin; ++i) StoreQueryGradients(queries[static_cast<size_t>(i)]);
  }

 private:
  // A query of the block: its number, its selected keys and how many of them are done, and the rows of its
  // heads.
  struct Query {
    int64_t number;
    SelectedKeys selected;
    int64_t done;
    float *q, *dout, *dq;
  };

  int64_t Rows() const { return std::max<int64_t>(0, heads_.end - heads_.first); }

  Query Begin(int64_t number, float* memory) const {
    Query query = {number, SelectedKeysOf(call_.selection, batch_, number), 0, memory, nullptr, nullptr};
    query.dout = query.q + Rows() * call_.key_row();
    query.dq = query.dout + Rows() * call_.value_row();
    GatherHeads(TokenHead<T>(call_.q, batch_, number, heads_.first), call_.q.strides[2], Rows(),
                call_.head_dim(), query.q);
    GatherHeads(TokenHead<T>(call_.dout, batch_, number, heads_.first), call_.dout.strides[2], Rows(),
                call_.value_dim(), query.dout);
    std::fill_n(query.dq, Rows() * call_.key_row(), 0.0F);
    return query;
  }

  // The selected keys below `end` that are not done.
  void AddTile(Query& query, int64_t end) const {
    const SelectedKeys& selected = query.selected;
    while (query.done < selected.count && selected.numbers[query.done] < end) {
      const int32_t* first = selected.numbers + query.done;
      const int64_t most = std::min(kKeyBlock, selected.count - query.done);
      const int64_t count = std::lower_bound(first, first + most, end) - first;
      float* target = nullptr;
      if (target_parts_ != nullptr) {
        target = target_parts_ + query.number % kQueryBlock * call_.selection.width() + query.done;
      }
      AddKeys(query, first, count, target);
      query.done += count;
    }
  }

  // Adds to the gradients of up to kKeyBlock keys, and to that of the query. Writes the keys' part of the
  // target.
  void AddKeys(const Query& query, const int32_t* numbers, int64_t count, float* target) const {
    const int64_t rows = Rows();
    static thread_local LocatedRows k_rows, v_rows;
    static thread_local Scratch score_memory, gradient_memory;
    const RowMatrix scores = {score_memory.Floats(rows * kKeyBlock), rows, count, kKeyBlock};
    const RowMatrix gradients = {gradient_memory.Floats(rows * kKeyBlock), rows, count, kKeyBlock};
    k_.Locate(numbers, count, k_rows);
    v_.Locate(numbers, count, v_rows);
    float *dk[kKeyBlock], *dv[kKeyBlock];
    for (int64_t j = 0; j < count; ++j) {
      dk[j] = sums_ + numbers[j] * (call_.key_row() + call_.value_row());
      dv[j] = dk[j] + call_.key_row();
    }
    RowTimesKeys(query.q, k_rows.pointers(), call_.key_row(), scores);
    RowTimesKeys(query.dout, v_rows.pointers(), call_.value_row(), gradients);
    for (int64_t row = 0; row < rows; ++row) {
      ScoreGradients(scores.Row(row), gradients.Row(row), count, call_.problem.scale,
                     StatisticsOf(call_.lse, batch_, heads_.first + row)[query.number],
                     StatisticsOf(call_.delta, batch_, heads_.first + row)[query.number]);
    }
    AddSumOfRows(gradients, query.q, call_.key_row(), dk);
    AddSumOfRows(scores, query.dout, call_.value_row(), dv);
    AddSumOfKeys(gradients, k_rows.pointers(), call_.key_row(), query.dq);
    if (target != nullptr) SumRows(scores, target);
  }

  void StoreQueryGradients(const Query& query) const {
    WithElementType(call_.dq.dtype, [&](auto element) {
      using Gradient = decltype(element);
      for (int64_t head = heads_.first; head < heads_.end; ++head) {
        const float* sum = query.dq + (head - heads_.first) * call_.key_row();
        StoreSumRun(sum, 0.0F, call_.head_dim(), TokenHead<Gradient>(call_.dq, batch_, query.number, head));
      }
    });
  }

  const BackwardCall& call_;
  int64_t batch_;
  HeadRange heads_;
  KeyRows<T> k_, v_;
  float* sums_;
  float* target_parts_;
};

// Queries [begin, end) of all sequences.
template <typename T>
void RunQueries(const BackwardCall& call, int64_t begin, int64_t end) {
  ParallelFor(call.q.shape[0] * call.kv_heads, 1, [&](int64_t first_item, int64_t end_item) {
    for (int64_t item = first_item; item < end_item; ++item) KvHeadBackward<T>(call, item).Run(begin, end);
  });
}

// Writes the target of queries [begin, end): the sum of the parts, divided by the number of heads.
void StoreTargets(const BackwardCall& call, int64_t begin, int64_t end, const TensorView& target) {
  const int64_t width = call.selection.width();
  const float factor = 1.0F / static_cast<float>(std::max<int64_t>(1, call.heads()));
  for (int64_t batch = 0; batch < target.shape[0]; ++batch) {
    for (int64_t query = begin; query < end; ++query) {
      float* __restrict row = target.As<float>() + batch * target.strides[0] + query * target.strides[1];
      const int64_t count = SelectedKeysOf(call.selection, batch, query).count;
      std::fill_n(row, width, 0.0F);
      for (int64_t head = 0; head < call.kv_heads; ++head) {
        const float* __restrict part =
            call.target_parts + ((batch * call.kv_heads + head) * kQueryBlock + query % kQueryBlock) * width;
        for (int64_t i = 0; i < count; ++i) row[i] += part[i];
      }
      for (int64_t i = 0; i < count; ++i) row[i] *= factor;
    }
  }
}

// Writes dK and dV of every kv head.
void StoreKeyGradients(const BackwardCall& call, absl::Span<const KeyGradients> gradients) {
  const int64_t stride = call.key_row() + call.value_row();
  int64_t number = 0;
  for (const KeyGradients& block : gradients) {
    const int64_t keys = block.dk.shape[1];
    const auto store = [&](const TensorView& target, int64_t offset) {
      WithElementType(target.dtype, [&](auto element) {
        using Gradient = decltype(element);
        ParallelFor(target.shape[0] * keys, RowGrain(target.shape[2] * target.shape[3]),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) {
                        for (int64_t head = 0; head < call.kv_heads; ++head) {
                          const int64_t item = row / keys * call.kv_heads + head;
                          const float* sum =
                              call.sums + (item * call.keys + number + row % keys) * stride + offset;
                          StoreSumRun(sum, 0.0F, target.shape[3],
                                      TokenHead<Gradient>(target, row / keys, row % keys, head));
                        }
                      }
                    });
      });
    };
    store(block.dk, 0);
    store(block.dv, call.key_row());
    number += keys;
  }
}

}  // namespace

void SparseAttentionBackward(const AttentionProblem& problem, const TensorView& q,
                             const KeySelection& selection, absl::Span<const KeyBlock> keys,
                             const AttentionBackwardInputs& inputs, const TensorView& dq,
                             absl::Span<const KeyGradients> gradients, const TensorView& target) {
  WEFT_CHECK(problem.scale > 0.0F, "attention scores need a positive scale");
  const bool has_target = target.data != nullptr;
  const int64_t kv_heads = keys.empty() ? KvHead(problem, q.shape[2] - 1) + 1 : keys[0].k.shape[2];
  const int64_t items = q.shape[0] * kv_heads;
  const int64_t key_count = KeyCount(keys);
  const int64_t row_floats = PaddedRow(q.shape[3]) + PaddedRow(inputs.dout.shape[3]);
  const Tensor sums = Tensor::Zeros(DType::kF32, {items, key_count, row_floats});
  const Tensor target_parts =
      Tensor::Empty(DType::kF32, {has_target ? items : 0, kQueryBlock, selection.width()});
  const BackwardCall call = {problem,
                             q,
                             selection,
                             ViewsOf(keys, &KeyBlock::k),
                             ViewsOf(keys, &KeyBlock::v),
                             inputs.lse,
                             inputs.delta,
                             inputs.dout,
                             dq,
                             kv_heads,
                             sums.As<float>(),
                             has_target ? target_parts.As<float>() : nullptr,
                             key_count,
                             TileKeys(row_floats, key_count, selection.width())};
  WithElementType(q.dtype, [&](auto element) {
    for (int64_t begin = 0; begin < call.queries(); begin += kQueryBlock) {
      const int64_t end = std::min(call.queries(), begin + kQueryBlock);
      RunQueries<decltype(element)>(call, begin, end);
      if (has_target) StoreTargets(call, begin, end, target);
    }
  });
  StoreKeyGradients(call, gradients);
}

}  // namespace weft
