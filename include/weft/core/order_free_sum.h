// The 1-norm and the 2-norm of values that are spread over threads, buffers and ranks, with the same bits
// however they are spread.
//
// Sums of floating-point numbers depend on their order; sums of integers do not. So the largest magnitude is
// found first (a maximum has no order either), and then every square is rounded to a multiple of 2^(2e - 48),
// e being the exponent of that maximum, and the multiples are added up exactly in 128 bits. A square is off
// by at most half a unit while the largest is at least 2^48 units: over n values the norm's relative error is
// below n 2^-50. For the 1-norm magnitudes are rounded to multiples of 2^(e - 48) in the same way: its
// relative error over n values is below n 2^-49.
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

// An exact sum of quantised squares or magnitudes, 40 bits to a limb, lowest first. Sums of several may be
// added limb by limb, up to 2^20 of them.
using OrderFreeSum = std::array<int64_t, 4>;

// `maximum` is that of all values that will come together, finite.
OrderFreeSum SumSquares(const float* values, int64_t count, float maximum);
OrderFreeSum SumMagnitudes(const float* values, int64_t count, float maximum);

// The square root of a sum of squares; infinity if `maximum` is, without a look at the sum.
double NormOf(const OrderFreeSum& sum, float maximum);
// The value of a sum of magnitudes; infinity likewise.
double OneNormOf(const OrderFreeSum& sum, float maximum);

// min(1, max_norm / (norm + 1e-6)), as clip_grad_norm_ of PyTorch; 1 for a max_norm of 0, which is off.
double ClipFactor(double norm, double max_norm);

}  // namespace weft
