#include "src/nn/attention/packed_heads.h"

#include "src/nn/attention/head_rows.h"
#include "weft/core/parallel.h"

namespace weft {

PackedHeads::PackedHeads(panels::Operand operand, Lines lines, const TensorView& view)
    : heads_(view.shape[2]),
      panels_(PanelsOf(lines == Lines::kTokens ? view.shape[1] : view.shape[3])),
      blocks_(PanelsOf(lines == Lines::kTokens ? view.shape[3] : view.shape[1])),
      memory_(Tensor::Empty(DType::kI32, {view.shape[0], heads_, panels_, blocks_, panels::kBlockWords})) {
  const int64_t tokens = view.shape[1];
  const int64_t dim = view.shape[3];
  const int64_t token_blocks = PanelsOf(tokens);
  const bool by_token = lines == Lines::kTokens;
  ParallelFor(view.shape[0] * heads_ * token_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t token_block = item % token_blocks;
      const int64_t head = item / token_blocks % heads_;
      const int64_t batch = item / token_blocks / heads_;
      const int64_t first = token_block * panels::kPanel;
      const HeadRows<BF16> rows = HeadOf<BF16>(view, batch, head).Skip(first);
      for (int64_t dims = 0; dims < dim; dims += panels::kPanel) {
        const panels::Source source = {reinterpret_cast<const uint16_t*>(rows.data) + dims, rows.stride,
                                       !by_token};
        const int64_t dim_block = dims / panels::kPanel;
        panels::PackPanelBlock(
            operand, source, by_token ? tokens - first : dim - dims, by_token ? dim - dims : tokens - first,
            BlockAt(batch, head, by_token ? token_block : dim_block, by_token ? dim_block : token_block));
      }
    }
  });
}

}  // namespace weft
