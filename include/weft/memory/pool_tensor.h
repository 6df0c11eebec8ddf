// Tensors in node memory, which peers of the node read in place.
#pragma once

#include <absl/status/statusor.h>

#include "weft/core/tensor.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Uninitialised, row-major, 64-byte aligned; its block goes back to the pool with the last copy. Errors:
// kResourceExhausted.
absl::StatusOr<Tensor> PoolTensor(BufferPool& pool, DType dtype, Shape shape);

}  // namespace weft
