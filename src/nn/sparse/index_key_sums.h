// Sums of the gradients of the index keys. The queries of a sequence are divided into parts; each part has
// its own sums, in fp32, and the parts are added up in order. The number of parts depends on the number of
// sequences alone, so that the bits do not depend on the number of threads.
//
// Thread safety: Of may be called from any thread; Store by one thread, after all parts are done.
#pragma once

#include <algorithm>
#include <cstdint>

#include <absl/types/span.h>

#include "src/nn/products/element.h"
#include "src/nn/sparse/row_products.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"

namespace weft {

class IndexKeySums {
 public:
  IndexKeySums(int64_t batches, int64_t keys, int64_t dim)
      : batches_(batches),
        parts_(std::max<int64_t>(1, kParts / std::max<int64_t>(1, batches))),
        keys_(keys),
        row_(PaddedRow(dim)),
        memory_(Tensor::Zeros(DType::kF32, {batches, parts_, keys, row_})) {}

  // Parts of all sequences; part i belongs to sequence i / PartsOfSequence().
  int64_t Parts() const { return batches_ * parts_; }
  int64_t PartsOfSequence() const { return parts_; }
  // Part `part` of a sequence takes items [Begin, End) of `count`.
  int64_t Begin(int64_t part, int64_t count) const { return count * (part % parts_) / parts_; }
  int64_t End(int64_t part, int64_t count) const { return count * (part % parts_ + 1) / parts_; }
  // The sums of one part: [keys, row_stride()].
  float* Of(int64_t part) const { return memory_.As<float>() + part * keys_ * row_; }
  int64_t row_stride() const { return row_; }

  // Writes the sums over the parts to blocks [batch, keys, dim] in f32. Overwrites the sums.
  void Store(absl::Span<const TensorView> blocks) const {
    for (int64_t batch = 0; batch < batches_; ++batch) {
      int64_t number = 0;
      for (const TensorView& block : blocks) {
        const int64_t dim = block.shape[2];
        ParallelFor(block.shape[1], RowGrain(parts_ * dim), [&](int64_t begin, int64_t end) {
          for (int64_t key = begin; key < end; ++key) {
            float* target = block.As<float>() + batch * block.strides[0] + key * block.strides[1];
            StoreKey(batch, number + key, dim, target);
          }
        });
        number += block.shape[1];
      }
    }
  }

 private:
  static constexpr int64_t kParts = 4;

  void StoreKey(int64_t batch, int64_t key, int64_t dim, float* __restrict target) const {
    const float* first = Of(batch * parts_) + key * row_;
    std::copy_n(first, dim, target);
    for (int64_t part = 1; part < parts_; ++part) {
      const float* __restrict sum = first + part * keys_ * row_;
      for (int64_t i = 0; i < dim; ++i) target[i] += sum[i];
    }
  }

  int64_t batches_, parts_, keys_, row_;
  Tensor memory_;
};

}  // namespace weft
