// The 2-norm of values that are spread over threads, buffers and ranks, with the same bits however they are
// spread.
//
// Sums of floating-point numbers depend on their order; sums of integers do not. So the largest magnitude is
// found first (a maximum has no order either), and then every square is rounded to a multiple of 2^(2e - 48),
// e being the exponent of that maximum, and the multiples are added up exactly in 128 bits. A square is off
// by at most half a unit while the largest is at least 2^48 units: over n values the norm's relative error is
// below n 2^-50.
//
// Over ranks: all-reduce MaxMagnitude with a maximum, then the limbs as i64 with a sum.
//
// Thread safety: free functions; loops run on the caller's threads.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

// The largest |value|, 0 for none; infinity if any is infinite or not a number.
float MaxMagnitude(const float* values, int64_t count);

// An exact sum of quantised squares, 40 bits to a limb, lowest first. Sums of several may be added limb by
// limb, up to 2^20 of them.
using SquareSum = std::array<int64_t, 4>;

// `maximum` is that of all values that will come together, finite.
SquareSum SumSquares(const float* values, int64_t count, float maximum);

// The square root of the sum; infinity if `maximum` is, without a look at the sum.
double NormOf(const SquareSum& sum, float maximum);

// min(1, max_norm / (norm + 1e-6)), as clip_grad_norm_ of PyTorch; 1 for a max_norm of 0, which is off.
double ClipFactor(double norm, double max_norm);

}  // namespace weft
