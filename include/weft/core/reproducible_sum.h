// 1-norm and 2-norm of distributed values, with results that are independent of order and partition.
//
// The values may be spread over threads, buffers and ranks in any way: the norm's bits are the same. Each
// value is read once, and ranks need one sum all-reduce.
//
// Note [Reproducible summation]
// Problem: a sum of floating-point numbers depends on their order; a sum of integers does not.
// Rule: cut every term (a square or a magnitude) into integers at fixed places that do not depend on other
// terms.
//   - At *level* j, a term is rounded to a multiple of 2^(48 j). The remainder goes to level j - 1.
//   - The level of a set of terms is the lowest level at which no term exceeds 2^47 multiples.
//   - Each term contributes two integers: at the set's level, and at the level below. These are summed
//     exactly. The rest of the term is dropped.
// Sums of sets with different levels can be added as they are: the terms of the set with the lower level
// round to 0 at the higher level.
// Error: each term is off by at most half a multiple at the lower of the two levels, and the largest term
// exceeds 2^47 of those multiples. Over n values, the relative error is below n 2^-49 for the 2-norm and
// below n 2^-48 for the 1-norm.
// Doubles: a square is rounded to double first. The levels have the range of floats, so doubles are summed
// in a common unit, a power of two near the largest of all values.
// Source: Demmel and Nguyen, "Parallel Reproducible Summation", 2015, use the same kind of bins.
//
// Thread safety: free functions; loops run on the calling rank's threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace weft {

// The largest |value|; 0 for no values; infinity if any value is infinite or NaN.
float MaxMagnitude(const float* values, int64_t count);
double MaxMagnitude(const double* values, int64_t count);

// A power of two near `max_magnitude`, within [2^-680, 2^900]; 1 for 0 and infinity. In this unit, doubles of
// at most that magnitude have the range of floats. A norm below 2^-800 loses bits.
double UnitOf(double max_magnitude);

// Exact partial sum of squares or of magnitudes. Partial sums of up to 2^20 sets (for example ranks) may be
// added element by element.
struct ReproducibleSum {
  static constexpr int kLowestLevel = -8;
  static constexpr int kHighestLevel = 5;
  static constexpr size_t kLimbs = 3;

  ReproducibleSum& operator+=(const ReproducibleSum& other);

  // Three limbs for each level, lowest level first: bits 0 to 39, bits 40 to 79, and the signed rest. The
  // last element counts the blocks of values that contain an infinity or a NaN; such blocks are not summed.
  std::array<int64_t, (kHighestLevel - kLowestLevel + 1)* kLimbs + 1> numbers = {};
};

// The values are counted in `unit`. REQUIRES: all sets that are added have the same unit; that of sets with
// doubles is UnitOf the largest magnitude of all.
ReproducibleSum SumSquares(const float* values, int64_t count, double unit = 1.0);
ReproducibleSum SumSquares(const double* values, int64_t count, double unit);
ReproducibleSum SumMagnitudes(const float* values, int64_t count, double unit = 1.0);
ReproducibleSum SumMagnitudes(const double* values, int64_t count, double unit);

// The square root of a sum of squares. Infinity if any value was infinite or NaN.
double TwoNormOf(const ReproducibleSum& sum, double unit = 1.0);
// The value of a sum of magnitudes. Infinity if any value was infinite or NaN.
double OneNormOf(const ReproducibleSum& sum, double unit = 1.0);

// A largest norm that no gradient exceeds.
inline constexpr double kNoClipping = std::numeric_limits<double>::infinity();
// min(1, max_norm / (norm + 1e-6)), as in PyTorch's clip_grad_norm_; 1 for kNoClipping.
// REQUIRES: max_norm >= 0.
double ClipFactor(double norm, double max_norm);

}  // namespace weft
