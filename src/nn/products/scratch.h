// Reusable scratch memory, uninitialized. It grows on demand and never shrinks.
//
// Thread safety: none; kernels keep a thread_local Scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/tensor.h"

namespace weft {

class Scratch {
 public:
  // At least `elements` floats, aligned to 64 bytes. Valid until the next call of Floats or Bytes.
  float* Floats(int64_t elements) {
    if (!memory_.defined() || memory_.elements() < elements) memory_ = Tensor::Empty(DType::kF32, {elements});
    return memory_.As<float>();
  }
  void* Bytes(size_t bytes) {
    return Floats(static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float)));
  }

 private:
  Tensor memory_;
};

}  // namespace weft
