// Element types, and the two 16-bit floating-point formats as plain structs with conversions to and from
// float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <absl/status/statusor.h>

#include "weft/core/dtype_enum.h"

namespace weft {

// Storage formats (sign, exponent and mantissa bits): BF16 is the upper half of a binary32 (1-8-7), F16 is
// IEEE 754 binary16 (1-5-10). Arithmetic is done in float.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// Widening is exact. Narrowing rounds to nearest, ties to even; NaN stays NaN; overflow gives infinity. The
// conversions use bit operations and selects only. Loops over them therefore vectorize on every instruction
// set, and give the same bits as scalar code. See Note [Binary16 by exponent shifts].
inline float ToFloat(BF16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline BF16 ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

// Note [Binary16 by exponent shifts]
// A binary16 shifted left by 13 bits has its mantissa at the place of binary32's. Its exponent's bias is too
// small by 127 - 15 = 112. Widening distinguishes three cases:
// - Normal numbers: add 112 to the exponent.
// - Infinities and NaN: add 112 twice, which turns exponent 31 into 255.
// - Subnormals (exponent 0): set the exponent to 113, which puts an implicit one in front of the mantissa.
//   Then subtract that one, which is worth 2^-14. The difference is exact.
// Narrowing inverts these cases. Normal numbers round by adding just under half a unit in the last place,
// plus one if the last kept bit is odd. Results below 2^-14 are rounded by a floating-point addition: after
// adding 0.5 = 2^-24 * 2^23, the low bits of the sum's mantissa count multiples of 2^-24, the unit of a
// subnormal.
inline float ToFloat(F16 value) {
  constexpr uint32_t kRebias = 112U << 23;
  const uint32_t moved = static_cast<uint32_t>(value.bits & 0x7fffU) << 13;
  const uint32_t exponent = moved & (31U << 23);
  const uint32_t normal = moved + kRebias;
  const float subnormal = std::bit_cast<float>(normal + (1U << 23)) - 0x1p-14F;
  uint32_t magnitude = exponent == (31U << 23) ? normal + kRebias : normal;
  magnitude = exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : magnitude;
  return std::bit_cast<float>(magnitude | static_cast<uint32_t>(value.bits & 0x8000U) << 16);
}

inline F16 ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  const uint32_t quiet_nan = 0x7e00U | ((magnitude >> 13) & 0x1ffU);
  uint32_t half = magnitude < (113U << 23) ? subnormal : normal;
  half = magnitude >= (143U << 23) ? 0x7c00U : half;
  half = magnitude > 0x7f800000U ? quiet_nan : half;
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000U))};
}

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}
constexpr int64_t BytesOf(int64_t elements, DType dtype) {
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

// The floating-point dtypes, which convert to each other. Arithmetic is done in float, and in double where
// f64 takes part.
constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}

// Returns "f32", "bf16", "f16", "i32", "i64", "f64", "i16", "i8" or "u8".
std::string_view Name(DType dtype);
// Errors: kInvalidArgument (lists the names).
absl::StatusOr<DType> ParseDType(std::string_view name);

// The DType of a C++ element type. Other types have an invalid value.
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
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<int16_t> = DType::kI16;
template <>
inline constexpr DType kDTypeOf<int8_t> = DType::kI8;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kU8;

}  // namespace weft
