// Exponential, sigmoid, sums and maxima that the compiler vectorizes. Vector code and scalar loop remainders
// give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace weft {

// e^x within one unit in the last place. Returns 0 for x < -87.3, where the result would be subnormal. Has no
// branch and no call, so that loops over it vectorize. REQUIRES: x <= 88.3.
//
// Method (Cody and Waite's range reduction): x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 P(r).
// P is the minimax polynomial for the relative error of e^r on that interval (2^-28). The exponent bits give
// 2^n.
inline float Exp(float x) {
  constexpr float kSmallest = -87.3F;
  constexpr float kLog2E = 1.44269504F;
  // ln 2 = kLn2Upper + kLn2Lower. kLn2Upper has trailing zero bits, so that n * kLn2Upper is exact.
  constexpr float kLn2Upper = 0.693359375F;
  constexpr float kLn2Lower = -2.12194440e-4F;
  // 1.5 * 2^23. Adding it rounds to an integer and leaves that integer in the low mantissa bits.
  constexpr float kRoundingShift = 12582912.0F;
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

// a * b + c, rounded once on processors with an instruction for it, else twice. Explicit, because the build
// forbids the compiler to contract products and sums.
inline float MultiplyAdd(float a, float b, float c) {
#ifdef FP_FAST_FMAF
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Number of partial sums (or maxima) of LaneSum and LaneMax. Lane l takes the terms l, l + kLanes, and so on;
// the lanes are combined at the end. The order of the additions thus depends only on the number of terms.
inline constexpr int64_t kLanes = 32;

// The sum of term(i) for i in [0, count).
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

// The maximum of term(i) for i in [0, count); `lowest` if count is 0.
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
