// Access to the selected keys of one query: their rows in the key blocks, gathered into contiguous memory in
// fp32.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/types/span.h>

#include "src/nn/kernels/head_rows.h"
#include "src/nn/products/element.h"
#include "src/nn/sparse/row_products.h"
#include "weft/core/tensor_view.h"
#include "weft/nn/sparse_attention_kernel.h"

namespace weft {

// The selected keys of one query. Views of a KeySelection may be strided.
struct SelectedKeys {
  const int32_t* numbers;
  const float* scores;
  int64_t count;
};
inline SelectedKeys SelectedKeysOf(const KeySelection& selection, int64_t batch, int64_t query) {
  const auto row = [&](const Tensor& tensor) {
    return batch * tensor.view().strides[0] + query * tensor.view().strides[1];
  };
  return {selection.keys.As<int32_t>() + row(selection.keys),
          selection.scores.As<float>() + row(selection.scores),
          selection.counts.As<int32_t>()[row(selection.counts)]};
}

// Rows of one head of one sequence, over all blocks of keys.
template <typename T>
class KeyRows {
 public:
  // `blocks` have shape [batch, keys, heads, dim].
  KeyRows(absl::Span<const TensorView> blocks, int64_t batch, int64_t head) {
    int64_t end = 0;
    for (const TensorView& block : blocks) {
      dim_ = block.shape[3];
      const HeadRows<T> rows = HeadOf<T>(block, batch, head);
      blocks_.push_back({rows, end, end + block.shape[1]});
      end += block.shape[1];
    }
  }

  // rows[j] = the row of key numbers[j], padded with zeros to PaddedRow(dim). REQUIRES: the numbers ascend.
  void Gather(const int32_t* numbers, int64_t count, float* rows) const {
    const int64_t padded = PaddedRow(dim_);
    size_t block = 0;
    for (int64_t j = 0; j < count; ++j) {
      while (numbers[j] >= blocks_[block].end) ++block;
      const T* __restrict source = blocks_[block].rows.Row(numbers[j] - blocks_[block].first);
      float* __restrict target = rows + j * padded;
      for (int64_t i = 0; i < dim_; ++i) target[i] = Load(source[i]);
      for (int64_t i = dim_; i < padded; ++i) target[i] = 0.0F;
    }
  }

 private:
  struct Block {
    HeadRows<T> rows;
    int64_t first, end;  // Numbers of its keys: [first, end).
  };
  std::vector<Block> blocks_;
  int64_t dim_ = 0;
};

// Copies the rows of consecutive heads of one token into contiguous memory in fp32, padded with zeros.
// `token_heads` is the first head's row, and the heads' rows start `stride` elements apart.
template <typename T>
void GatherHeads(const T* token_heads, int64_t stride, int64_t heads, int64_t dim, float* rows) {
  const int64_t padded = PaddedRow(dim);
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < dim; ++i) rows[head * padded + i] = Load(token_heads[head * stride + i]);
    for (int64_t i = dim; i < padded; ++i) rows[head * padded + i] = 0.0F;
  }
}

// The first element of a token's row of one head in a tensor [batch, tokens, heads, dim].
template <typename T>
T* TokenHead(const TensorView& view, int64_t batch, int64_t token, int64_t head) {
  return view.As<T>() + batch * view.strides[0] + token * view.strides[1] + head * view.strides[2];
}

inline int64_t KeyCount(absl::Span<const KeyBlock> keys) {
  int64_t count = 0;
  for (const KeyBlock& block : keys) count += block.k.shape[1];
  return count;
}

inline std::vector<TensorView> ViewsOf(absl::Span<const KeyBlock> keys, TensorView KeyBlock::*which) {
  std::vector<TensorView> views;
  for (const KeyBlock& block : keys) views.push_back(block.*which);
  return views;
}

// Index keys [batch, keys, dim] as blocks [batch, keys, 1, dim].
inline std::vector<TensorView> WithOneHead(absl::Span<const TensorView> index_keys) {
  std::vector<TensorView> views(index_keys.begin(), index_keys.end());
  for (TensorView& view : views) {
    view.shape.insert(view.shape.begin() + 2, 1);
    view.strides.insert(view.strides.begin() + 2, 0);
  }
  return views;
}

}  // namespace weft
