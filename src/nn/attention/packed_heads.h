// One operand of attention's products, packed into panels of bf16 for all heads (panel_kernels.h). A head's
// matrix is [tokens, dim] or its transpose.
//
// Thread safety: any thread may read.
#pragma once

#include <cstdint>

#include "src/nn/products/panel_kernels.h"
#include "weft/core/rounding.h"
#include "weft/core/tensor.h"
#include "weft/core/tensor_view.h"

namespace weft {

inline int64_t PanelsOf(int64_t lines) { return CeilDiv(lines, panels::kPanel); }

class PackedHeads {
 public:
  enum class Lines : uint8_t { kTokens, kDims };  // The lines of a panel; the other dimension is k.

  // `view` is [batch, tokens, heads, dim], in bf16. Packs by the ThreadCount() threads of the calling thread.
  PackedHeads(panels::Operand operand, Lines lines, const TensorView& view);

  // The k block `block` of a panel of one head. The panel's other k blocks follow.
  const uint32_t* At(int64_t batch, int64_t head, int64_t panel, int64_t block) const {
    return BlockAt(batch, head, panel, block);
  }

 private:
  uint32_t* BlockAt(int64_t batch, int64_t head, int64_t panel, int64_t block) const {
    const int64_t index = ((batch * heads_ + head) * panels_ + panel) * blocks_ + block;
    return static_cast<uint32_t*>(memory_.view().data) + index * panels::kBlockWords;
  }

  int64_t heads_, panels_, blocks_;
  Tensor memory_;  // [batch, heads, panels, k blocks, kBlockWords]
};

}  // namespace weft
