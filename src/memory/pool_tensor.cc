#include "weft/memory/pool_tensor.h"

#include <memory>
#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::StatusOr<Tensor> PoolTensor(BufferPool& pool, DType dtype, Shape shape) {
  TensorView view = TensorView::Contiguous(nullptr, dtype, std::move(shape));
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, pool.Acquire(view.bytes()));
  view.data = buffer.data();
  auto block = std::make_shared<Buffer>(std::move(buffer));
  // Tensor storage is identified by its address. The aliasing pointer has the block's address and owns the
  // Buffer.
  std::shared_ptr<void> storage(block, block->data());
  return Tensor(std::move(storage), std::move(view));
}

}  // namespace weft
