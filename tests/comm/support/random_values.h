// Random values of every dtype, and their sums in the order of the canonical tree. Every rank can compute the
// values of every other rank.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "weft/core/dtype.h"

namespace weft::testing {

// Random bits of element i of a rank's input.
inline uint64_t RandomBits(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15U + static_cast<uint64_t>(i) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Random number. Signs and exponents vary so much that different orders of addition usually give different
// last bits.
inline float RandomFloat(int rank, int64_t i, int exponents) {
  const uint64_t bits = RandomBits(rank, i);
  const auto mantissa = static_cast<float>(static_cast<int64_t>(bits >> 40) - (int64_t{1} << 23));
  const int exponent = static_cast<int>(bits % static_cast<uint64_t>(exponents)) - exponents / 2 - 23;
  return std::ldexp(mantissa, exponent);
}

template <typename T>
struct Arithmetic {
  using Wide = T;
  static T Random(int rank, int64_t i) { return static_cast<T>(RandomBits(rank, i)); }
  static Wide Widen(T value) { return value; }
  static T Narrow(Wide value) { return value; }
  static Wide Add(Wide a, Wide b) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
template <>
struct Arithmetic<float> {
  using Wide = float;
  static float Random(int rank, int64_t i) { return RandomFloat(rank, i, 40); }
  static float Widen(float value) { return value; }
  static float Narrow(float value) { return value; }
  static float Add(float a, float b) { return a + b; }
};
template <>
struct Arithmetic<double> {
  using Wide = double;
  static double Random(int rank, int64_t i) {
    return static_cast<double>(RandomFloat(rank, i, 40)) * (1.0 + 0x1p-30 * static_cast<double>(i % 7));
  }
  static double Widen(double value) { return value; }
  static double Narrow(double value) { return value; }
  static double Add(double a, double b) { return a + b; }
};
template <>
struct Arithmetic<F16> : Arithmetic<float> {
  static F16 Random(int rank, int64_t i) { return ToF16(RandomFloat(rank, i, 16)); }
  static float Widen(F16 value) { return ToFloat(value); }
  static F16 Narrow(float value) { return ToF16(value); }
};
template <>
struct Arithmetic<BF16> : Arithmetic<float> {
  static BF16 Random(int rank, int64_t i) { return ToBF16(RandomFloat(rank, i, 16)); }
  static float Widen(BF16 value) { return ToFloat(value); }
  static BF16 Narrow(float value) { return ToBF16(value); }
};

// Evaluates T(lo, n) over the leaves leaf(i). See Note [Canonical tree].
template <typename T, typename Leaf>
typename Arithmetic<T>::Wide TreeSum(int lo, int n, const Leaf& leaf) {
  if (n == 1) return leaf(lo);
  int left = 1;
  while (2 * left < n) left *= 2;
  return Arithmetic<T>::Add(TreeSum<T>(lo, left, leaf), TreeSum<T>(lo + left, n - left, leaf));
}

// Calls `body` with a value of the type of `dtype`.
template <typename Body>
auto WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kBF16:
      return body(BF16{});
    case DType::kF16:
      return body(F16{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kI64:
      return body(int64_t{});
    case DType::kF64:
      return body(double{});
    case DType::kI16:
      return body(int16_t{});
    case DType::kI8:
      return body(int8_t{});
    case DType::kU8:
      return body(uint8_t{});
    case DType::kF32:
      break;
  }
  return body(float{});
}

}  // namespace weft::testing
