// Arithmetic that a compiler turns into vector code, with the same bits in a vector's body and in a loop's
// tail.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

// e^x for x <= 88.3, to within one unit in the last place; 0 below -87.3, where results would be subnormal.
// No branch and no call, so that loops over it vectorise.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 P(r), P fitted to the least maximal relative error
// of e^r on that interval (2^-28); 2^n through the exponent's bits.
inline float Exp(float x) {
  constexpr float kSmallest = -87.3F;
  constexpr float kLog2E = 1.44269504F;
  // ln 2 in two parts: the upper has trailing zeros, so that n times it is exact.
  constexpr float kLn2Upper = 0.693359375F;
  constexpr float kLn2Lower = -2.12194440e-4F;
  constexpr float kRoundingShift =
      12582912.0F;  // 1.5 * 2^23: adding it leaves the integer in the low mantissa bits.
  const float clamped = x < kSmallest ? kSmallest : x;
  const float shifted = clamped * kLog2E + kRoundingShift;
  const float n = shifted - kRoundingShift;
  const float r = (clamped - n * kLn2Upper) - n * kLn2Lower;
  float polynomial = 1.38144670593e-3F;
  polynomial = polynomial * r + 8.36878041118e-3F;
  polynomial = polynomial * r + 4.16683942109e-2F;
  polynomial = polynomial * r + 1.66665201078e-1F;
  polynomial = polynomial * r + 4.99999934125e-1F;
  const float power = polynomial * (r * r) + r + 1.0F;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
  const float result = std::bit_cast<float>(std::bit_cast<uint32_t>(power) + exponent);
  return x < kSmallest ? 0.0F : result;
}

inline float Sigmoid(float x) { return 1.0F / (1.0F + Exp(x < -88.0F ? 88.0F : -x)); }

// Sums and maxima run in this many lanes that are joined at the end: an order that the length alone decides.
inline constexpr int64_t kLanes = 32;

// sum of term(i) for i in [0, count).
template <typename Term>
float LaneSum(int64_t count, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// The largest value of term(i); `lowest` for none.
template <typename Term>
float LaneMax(int64_t count, float lowest, const Term& term) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = lowest;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = term(i + lane);
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const float value = term(i + lane);
    lanes[lane] = value > lanes[lane] ? value : lanes[lane];
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) {
      lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
    }
  }
  return lanes[0];
}

}  // namespace weft
