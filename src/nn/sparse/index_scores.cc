#include "src/nn/sparse/index_scores.h"

#include "src/nn/kernels/vector_math.h"
#include "src/nn/products/element.h"
#include "src/nn/sparse/selected_keys.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Index heads that are computed at once. Missing heads of the last group have a weight of 0.
constexpr int64_t kHeadGroup = 4;

template <typename T>
void PackKeys(IndexKeys keys, int64_t batch, int64_t dim, float* packed) {
  int64_t number = 0;
  for (const TensorView& block : keys) {
    const HeadRows<T> rows = {block.As<T>() + batch * block.strides[0], block.strides[1]};
    ParallelFor(block.shape[1], RowGrain(dim), [&](int64_t begin, int64_t end) {
      for (int64_t key = begin; key < end; ++key) {
        const int64_t at = number + key;
        float* target = packed + at / kKeyChunk * kKeyChunk * dim + at % kKeyChunk;
        for (int64_t i = 0; i < dim; ++i) target[i * kKeyChunk] = Load(rows.Row(key)[i]);
      }
    });
    number += block.shape[1];
  }
}

template <typename T>
void PackQuery(const IndexQueries& index, int64_t batch, int64_t query, float* q, float* weights) {
  const int64_t dim = index.q.shape[3];
  const T* weight =
      index.weights.As<T>() + batch * index.weights.strides[0] + query * index.weights.strides[1];
  for (int64_t head = 0; head < index.q.shape[2]; ++head) {
    const T* source = TokenHead<T>(index.q, batch, query, head);
    float* target = q + head / kHeadGroup * kHeadGroup * dim + head % kHeadGroup;
    for (int64_t i = 0; i < dim; ++i) target[i * kHeadGroup] = Load(source[i]);
    weights[head] = Load(weight[head]);
  }
}

// Adds the scores of one group of heads.
void AddScores(const float* __restrict q, const float* __restrict weights, const float* __restrict keys,
               int64_t dim, float* __restrict scores) {
  float products[kHeadGroup][kKeyChunk] = {};
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t head = 0; head < kHeadGroup; ++head) {
      for (int64_t key = 0; key < kKeyChunk; ++key) {
        products[head][key] =
            MultiplyAdd(q[i * kHeadGroup + head], keys[i * kKeyChunk + key], products[head][key]);
      }
    }
  }
  for (int64_t head = 0; head < kHeadGroup; ++head) {
    for (int64_t key = 0; key < kKeyChunk; ++key) {
      const float positive = products[head][key] > 0.0F ? products[head][key] : 0.0F;
      scores[key] = MultiplyAdd(weights[head], positive, scores[key]);
    }
  }
}

}  // namespace

PackedIndexKeys::PackedIndexKeys(IndexKeys keys, int64_t batch) : dim_(keys.empty() ? 0 : keys[0].shape[2]) {
  int64_t count = 0;
  for (const TensorView& block : keys) count += block.shape[1];
  const int64_t chunks = (count + kKeyChunk - 1) / kKeyChunk;
  memory_ = Tensor::Zeros(DType::kF32, {chunks, dim_, kKeyChunk});
  if (count == 0) return;
  WithElementType(keys[0].dtype,
                  [&](auto element) { PackKeys<decltype(element)>(keys, batch, dim_, memory_.As<float>()); });
}

PackedIndexQueries::PackedIndexQueries(const IndexQueries& index, int64_t batch, int64_t first, int64_t count)
    : groups_((index.q.shape[2] + kHeadGroup - 1) / kHeadGroup),
      dim_(index.q.shape[3]),
      q_(Tensor::Zeros(DType::kF32, {count, groups_, dim_, kHeadGroup})),
      weights_(Tensor::Zeros(DType::kF32, {count, groups_, kHeadGroup})) {
  WithElementType(index.q.dtype, [&](auto element) {
    for (int64_t query = 0; query < count; ++query) {
      PackQuery<decltype(element)>(index, batch, first + query,
                                   q_.As<float>() + query * groups_ * dim_ * kHeadGroup,
                                   weights_.As<float>() + query * groups_ * kHeadGroup);
    }
  });
}

void PackedIndexQueries::Score(int64_t query, const PackedIndexKeys& keys, int64_t chunk,
                               float* scores) const {
  for (int64_t key = 0; key < kKeyChunk; ++key) scores[key] = 0.0F;
  for (int64_t group = query * groups_; group < (query + 1) * groups_; ++group) {
    AddScores(q_.As<float>() + group * dim_ * kHeadGroup, weights_.As<float>() + group * kHeadGroup,
              keys.Chunk(chunk), dim_, scores);
  }
}

}  // namespace weft
