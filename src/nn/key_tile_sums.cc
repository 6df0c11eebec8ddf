#include "src/nn/key_tile_sums.h"

#include <algorithm>

#include "src/nn/element.h"
#include "src/nn/head_rows.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

void AddRun(const float* __restrict addend, int64_t count, float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

}  // namespace

KeyTileSums::KeyTileSums(const AttentionProblem& problem, int64_t batches, int64_t heads, int64_t most_keys,
                         int64_t head_dim, int64_t value_dim)
    : problem_(problem),
      batches_(batches),
      heads_(heads),
      key_elements_(most_keys * head_dim),
      value_elements_(most_keys * value_dim),
      memory_(Tensor::Empty(DType::kF32, {batches * heads, key_elements_ + value_elements_})) {}

TileGradients KeyTileSums::Of(int64_t item) const {
  float* dk = memory_.As<float>() + item * (key_elements_ + value_elements_);
  return {dk, dk + key_elements_};
}

void KeyTileSums::Store(const KeyTile& tile, const KeyGradients& targets, float beta) const {
  const int64_t kv_heads = targets.dk.shape[2];
  ParallelFor(batches_ * kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      StoreHead(tile, &TileGradients::dk, targets.dk, item / kv_heads, item % kv_heads, beta);
      StoreHead(tile, &TileGradients::dv, targets.dv, item / kv_heads, item % kv_heads, beta);
    }
  });
}

void KeyTileSums::StoreHead(const KeyTile& tile, float* TileGradients::*which, const TensorView& target,
                            int64_t batch, int64_t kv_head, float beta) const {
  const int64_t dim = target.shape[3];
  const int64_t first = std::max<int64_t>(0, kv_head * problem_.group - problem_.head_offset);
  const int64_t end = std::min(heads_, (kv_head + 1) * problem_.group - problem_.head_offset);
  Tensor nothing;  // A kv head that no query head here reads.
  if (first >= end) nothing = Tensor::Zeros(DType::kF32, {tile.count, dim});
  float* sum = first < end ? Of(batch * heads_ + first).*which : nothing.As<float>();
  for (int64_t head = first + 1; head < end; ++head)
    AddRun(Of(batch * heads_ + head).*which, tile.count * dim, sum);
  WithElementType(target.dtype, [&](auto element) {
    const auto rows = HeadOf<decltype(element)>(target, batch, kv_head);
    for (int64_t key = 0; key < tile.count; ++key) {
      StoreSumRun(sum + key * dim, beta, dim, rows.Row(tile.first + key));
    }
  });
}

}  // namespace weft
