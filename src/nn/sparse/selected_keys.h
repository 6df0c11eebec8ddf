// Access to the selected keys of one query, and to their rows in the key blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <absl/types/span.h>

#include "src/nn/attention/head_rows.h"
#include "src/nn/products/element.h"
#include "src/nn/products/scratch.h"
#include "src/nn/sparse/row_products.h"
#include "weft/core/tensor_view.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

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

// Selected keys whose rows are used at once: they stay in the cache of a core from their first use to their
// last.
inline constexpr int64_t kKeyBlock = 64;

// Rows of up to kKeyBlock keys, in fp32 and padded with zeros to PaddedRow(dim). They lie in the tensor
// itself where it has this form, else in a copy.
class LocatedRows {
 public:
  const float* const* pointers() const { return pointers_; }

 private:
  template <typename T>
  friend class KeyRows;
  const float* pointers_[kKeyBlock];
  Scratch copies_;
};

// Rows of one head of one sequence, over all blocks of keys.
template <typename T>
class KeyRows {
 public:
  // `blocks` have shape [batch, keys, heads, dim].
  KeyRows(absl::Span<const TensorView> blocks, int64_t batch, int64_t head) {
    int64_t end = 0;
    for (const TensorView& block : blocks) {
      dim_ = block.shape[3];
      blocks_.push_back({HeadOf<T>(block, batch, head), end, end + block.shape[1]});
      end += block.shape[1];
    }
  }

  // Locates the rows of keys numbers[0, count). REQUIRES: the numbers ascend; count <= kKeyBlock.
  void Locate(const int32_t* numbers, int64_t count, LocatedRows& rows) const {
    const int64_t padded = PaddedRow(dim_);
    const bool in_place = std::is_same_v<T, float> && padded == dim_;
    float* copies = in_place ? nullptr : rows.copies_.Floats(kKeyBlock * padded);
    size_t block = 0;
    for (int64_t j = 0; j < count; ++j) {
      while (numbers[j] >= blocks_[block].end) ++block;
      const T* source = blocks_[block].rows.Row(numbers[j] - blocks_[block].first);
      if constexpr (std::is_same_v<T, float>) {
        if (in_place) {
          rows.pointers_[j] = source;
          continue;
        }
      }
      GatherHeads(source, 0, 1, dim_, copies + j * padded);
      rows.pointers_[j] = copies + j * padded;
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

// The first element of a token's row of one head in a tensor [batch, tokens, heads, dim].
template <typename T>
T* TokenHead(const TensorView& view, int64_t batch, int64_t token, int64_t head) {
  return view.As<T>() + batch * view.strides[0] + token * view.strides[1] + head * view.strides[2];
}

// Calls visit(first, count) for consecutive parts of at most kKeyBlock of the selected keys.
template <typename Visit>
void ForEachKeyBlock(const SelectedKeys& selected, const Visit& visit) {
  for (int64_t first = 0; first < selected.count; first += kKeyBlock) {
    visit(first, std::min(kKeyBlock, selected.count - first));
  }
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
