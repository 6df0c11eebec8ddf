// Tensors that come from the system rather than from the allocator's cache.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/tensor.h"

namespace weft {

// Takes tensors of this size until one comes from the system, and returns its bytes with their padding. While
// `taken` keeps them, the next tensor of this size comes from the system, too. Nothing is taken for 0 bytes.
inline int64_t TakeFromSystem(int64_t bytes, std::vector<Tensor>& taken) {
  const int64_t before = TensorBytesFromSystem();
  while (bytes > 0 && TensorBytesFromSystem() == before) {
    taken.push_back(Tensor::Empty(DType::kU8, {bytes}));
  }
  return TensorBytesFromSystem() - before;
}

}  // namespace weft
