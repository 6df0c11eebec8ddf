// Element types, and the 16-bit floating-point formats as plain structs with exact conversions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <absl/status/statusor.h>

namespace weft {

enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kI64 };

// Truncated binary32 (1-8-7 bits), and IEEE 754 binary16 (1-5-10 bits). Only storage: arithmetic is done in float.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// Widening is exact; narrowing rounds to nearest, ties to even, keeps NaN a NaN, and overflows to infinity.
float ToFloat(BF16 value);
float ToFloat(F16 value);
BF16 ToBF16(float value);
F16 ToF16(float value);

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kI64: return 8;
  }
  return 0;
}
constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// "f32", "bf16", "f16", "i32", "i64".
std::string_view Name(DType dtype);
// Errors: kInvalidArgument (lists the names).
absl::StatusOr<DType> ParseDType(std::string_view name);

template <typename T>
inline constexpr DType kDTypeOf = DType{0xff};
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BF16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kI64;

}  // namespace weft
