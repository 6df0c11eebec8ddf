// Tensors in node memory, which local peers can read in place.
#pragma once

#include <absl/status/statusor.h>

#include "weft/core/tensor.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Returns an uninitialized, row-major, 64-byte aligned tensor. Its block returns to the pool when the last
// copy of the tensor is destroyed.
// Errors: as BufferPool::Acquire.
absl::StatusOr<Tensor> PoolTensor(BufferPool& pool, DType dtype, Shape shape);

}  // namespace weft
