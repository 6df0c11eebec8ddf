// The 1-norm and the 2-norm of values that are spread over threads, buffers and ranks, with the same bits
// however they are spread, in one pass over them and one sum over the ranks.
//
// Note [Levels of a sum]
// Sums of floating-point numbers depend on their order; sums of integers do not. So the terms, squares or
// magnitudes, are cut into integers at fixed places, which no other term has a say in: at *level* j a term is
// rounded to a multiple of 2^(48 j), and what it is off by is left to level j - 1. The level of a set of
// terms is the lowest at which none is over 2^47 multiples. Of every term the parts at this level and at the
// one below are added up, exactly, and the rest is left out. Sets of different levels may be joined as they
// are: the lower one's terms have no part at the upper one's level. (Demmel and Nguyen, "Parallel
// Reproducible Summation", 2015, bin the parts of a sum in this way.)
//
// A term is off by at most half of a multiple at the lower level, and the largest is over 2^47 of these: over
// n values the 2-norm's relative error is below n 2^-49, and that of the 1-norm below n 2^-48.
//
// Thread safety: free functions; loops run on the caller's threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft {

// The largest |value|, 0 for none; infinity if any is infinite or not a number.
float MaxMagnitude(const float* values, int64_t count);

// Squares or magnitudes, added up. The numbers of several sets, as of ranks, may be added one by one, up to
// 2^20 of them.
struct OrderFreeSum {
  static constexpr int kLowestLevel = -8;
  static constexpr int kHighestLevel = 5;
  static constexpr size_t kLimbs = 3;

  OrderFreeSum& operator+=(const OrderFreeSum& other);

  // Of each level, the lowest first: 40 bits, 40 bits, and what is above them, with the sign. Then in how
  // many places there was something infinite, or not a number, which was not added up.
  std::array<int64_t, (kHighestLevel - kLowestLevel + 1)* kLimbs + 1> numbers = {};
};

OrderFreeSum SumSquares(const float* values, int64_t count);
OrderFreeSum SumMagnitudes(const float* values, int64_t count);

// The square root of a sum of squares; infinity if any value was infinite or not a number.
double NormOf(const OrderFreeSum& sum);
// The value of a sum of magnitudes; infinity likewise.
double OneNormOf(const OrderFreeSum& sum);

// min(1, max_norm / (norm + 1e-6)), as clip_grad_norm_ of PyTorch; 1 for a max_norm of 0, which is off.
double ClipFactor(double norm, double max_norm);

}  // namespace weft
