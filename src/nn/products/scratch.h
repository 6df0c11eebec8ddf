// Working memory of a thread: grows, is never given back, and is not initialised.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/core/tensor.h"

namespace weft {

class Scratch {
 public:
  // At least `elements` floats, aligned to 64 bytes; valid until the next call.
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
