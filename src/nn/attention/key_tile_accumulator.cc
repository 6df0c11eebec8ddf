#include "src/nn/attention/key_tile_accumulator.h"

#include <algorithm>

#include "src/nn/products/element.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

void AddFloats(const float* __restrict addend, int64_t count, float* __restrict sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

}  // namespace

KeyTileAccumulator::KeyTileAccumulator(const AttentionProblem& problem, const TensorView& q,
                                       absl::Span<const KeyGradients> targets, float beta, int64_t max_keys)
    : problem_(problem),
      targets_(targets),
      beta_(beta),
      batches_(q.shape[0]),
      heads_(q.shape[2]),
      max_keys_(max_keys) {
  const bool in_place = std::all_of(targets.begin(), targets.end(),
                                    [&](const KeyGradients& t) { return AccumulatesInPlace(t); });
  if (in_place) return;
  const int64_t dims = q.shape[3] + targets[0].dv.shape[3];
  memory_ = Tensor::Empty(DType::kF32, {batches_, heads_, max_keys_, dims});
}

bool KeyTileAccumulator::AccumulatesInPlace(const KeyGradients& target) const {
  return problem_.group == 1 && problem_.head_offset == 0 && target.dk.shape[2] == heads_ &&
         target.dk.dtype == DType::kF32 && target.dv.dtype == DType::kF32;
}

TileGradients KeyTileAccumulator::HeadGradients(const KeyTile& tile, int64_t batch, int64_t head) const {
  const KeyGradients& target = TargetOf(tile);
  if (AccumulatesInPlace(target)) {
    return {HeadOf<float>(target.dk, batch, head).Skip(tile.first),
            HeadOf<float>(target.dv, batch, head).Skip(tile.first), beta_};
  }
  const int64_t head_dim = target.dk.shape[3];
  const int64_t value_dim = target.dv.shape[3];
  float* dk = memory_.As<float>() + (batch * heads_ + head) * max_keys_ * (head_dim + value_dim);
  return {{dk, head_dim}, {dk + max_keys_ * head_dim, value_dim}, 0.0F};
}

void KeyTileAccumulator::Store(const KeyTile& tile) const {
  const KeyGradients& target = TargetOf(tile);
  if (AccumulatesInPlace(target)) return;
  const int64_t kv_heads = target.dk.shape[2];
  ParallelFor(batches_ * kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      StoreHead(tile, item / kv_heads, item % kv_heads, &TileGradients::dk, target.dk);
      StoreHead(tile, item / kv_heads, item % kv_heads, &TileGradients::dv, target.dv);
    }
  });
}

void KeyTileAccumulator::StoreHead(const KeyTile& tile, int64_t batch, int64_t kv_head,
                                   HeadRows<float> TileGradients::*which, const TensorView& target) const {
  const int64_t elements = tile.count * target.shape[3];
  const auto [first, end] = QueryHeadsOf(problem_, heads_, kv_head);
  const auto sum_of = [&](int64_t head) { return (HeadGradients(tile, batch, head).*which).data; };
  Tensor zeros;  // The sum for a kv head that no query head of this rank reads.
  if (first >= end) zeros = Tensor::Zeros(DType::kF32, {elements});
  float* sum = first < end ? sum_of(first) : zeros.As<float>();
  for (int64_t head = first + 1; head < end; ++head) AddFloats(sum_of(head), elements, sum);
  WithElementType(target.dtype, [&](auto element) {
    const auto rows = HeadOf<decltype(element)>(target, batch, kv_head).Skip(tile.first);
    for (int64_t key = 0; key < tile.count; ++key) {
      StoreSumRun(sum + key * target.shape[3], beta_, target.shape[3], rows.Row(key));
    }
  });
}

}  // namespace weft
