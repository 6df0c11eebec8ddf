// Conversion between fp32 and the elements of f32, bf16 and f16 tensors, for kernels that compute in fp32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "weft/core/dtype.h"
#include "weft/core/status.h"

namespace weft {

inline float Load(float value) { return value; }
inline float Load(BF16 value) { return ToFloat(value); }
inline float Load(F16 value) { return ToFloat(value); }

template <typename T>
T Round(float value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return ToBF16(value);
  } else if constexpr (std::is_same_v<T, F16>) {
    return ToF16(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

// The dtypes of activations, and of the operands of products.
constexpr bool IsComputeDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Calls function(T{}), where T is the element type of `dtype`: float, BF16 or F16.
// REQUIRES: IsComputeDType(dtype).
template <typename Function>
void WithElementType(DType dtype, const Function& function) {
  if (dtype == DType::kBF16) {
    function(BF16{});
  } else if (dtype == DType::kF16) {
    function(F16{});
  } else {
    WEFT_CHECK(dtype == DType::kF32, "a module was given a tensor whose dtype is none of f32, bf16 and f16");
    function(float{});
  }
}

// target = sum + beta * target over `count` elements, rounded once. With beta 0 the old target is not read.
template <typename T>
void StoreSumRun(const float* __restrict sum, float beta, int64_t count, T* __restrict target) {
  if (beta == 0.0F) {
    for (int64_t i = 0; i < count; ++i) target[i] = Round<T>(sum[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = Round<T>(sum[i] + beta * Load(target[i]));
  }
}

// Grain of ParallelFor over rows of `columns` elements: the fewest rows that are worth a thread.
inline int64_t RowGrain(int64_t columns) {
  constexpr int64_t kElements = int64_t{16} * 1024;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, columns));
}

}  // namespace weft
