#include "weft/core/order_free_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "weft/core/parallel.h"
#include "weft/core/status.h"

namespace weft {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kLimbBits = 40;
constexpr int64_t kLanes = 8;
constexpr int64_t kGrain = int64_t{64} * 1024;
// Terms are below 2^50 units, so a 64-bit lane takes this many and some.
constexpr int64_t kTermsPerLane = 4096;

// What is added up, both exact in double: `UnitExponent` is log2 of the unit that terms are rounded to.
struct Square {
  static double Term(double value) { return value * value; }
  static int UnitExponent(float maximum) { return 2 * std::ilogb(maximum) - 48; }
};
struct Magnitude {
  static double Term(double value) { return std::abs(value); }
  static int UnitExponent(float maximum) { return std::ilogb(maximum) - 48; }
};

// round(term scale). Adding 1.5 * 2^52 rounds to an integer, which then stands in the low bits.
uint64_t Quantize(double term, double scale) {
  constexpr double kShift = 0x1.8p52;
  return std::bit_cast<uint64_t>(term * scale + kShift) - std::bit_cast<uint64_t>(kShift);
}

// For at most kLanes * kTermsPerLane values.
template <typename Of>
Wide SumBlock(const float* values, int64_t count, double scale) {
  uint64_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += Quantize(Of::Term(values[i + lane]), scale);
  }
  for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += Quantize(Of::Term(values[i + lane]), scale);
  Wide sum = 0;
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

OrderFreeSum ToLimbs(Wide sum) {
  OrderFreeSum limbs;
  for (int64_t& limb : limbs) {
    limb = static_cast<int64_t>(sum & ((Wide{1} << kLimbBits) - 1));
    sum >>= kLimbBits;
  }
  return limbs;
}

template <typename Of>
OrderFreeSum Sum(const float* values, int64_t count, float maximum) {
  WEFT_CHECK(std::isfinite(maximum), "values are summed under a maximum that is not finite");
  if (maximum == 0.0F) return {};
  const double scale = std::ldexp(1.0, -Of::UnitExponent(maximum));
  Wide total = 0;
  std::mutex mutex;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    Wide part = 0;
    for (int64_t block = begin; block < end; block += kLanes * kTermsPerLane) {
      part += SumBlock<Of>(values + block, std::min(end - block, kLanes * kTermsPerLane), scale);
    }
    const std::lock_guard lock(mutex);
    total += part;
  });
  return ToLimbs(total);
}

template <typename Of>
double ValueOf(const OrderFreeSum& sum, float maximum) {
  if (!std::isfinite(maximum)) return std::numeric_limits<double>::infinity();
  if (maximum == 0.0F) return 0.0;
  Wide total = 0;
  for (size_t i = sum.size(); i-- > 0;) total = (total << kLimbBits) + static_cast<uint64_t>(sum[i]);
  return std::ldexp(static_cast<double>(total), Of::UnitExponent(maximum));
}

}  // namespace

float MaxMagnitude(const float* values, int64_t count) {
  // Without their sign bit, floats are ordered like the integers of their bits, and what is not a number
  // comes last.
  constexpr uint32_t kMagnitude = 0x7fffffffU;
  constexpr uint32_t kInfinity = 0x7f800000U;
  uint32_t largest = 0;
  std::mutex mutex;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    uint32_t part = 0;
    for (int64_t i = begin; i < end; ++i)
      part = std::max(part, std::bit_cast<uint32_t>(values[i]) & kMagnitude);
    const std::lock_guard lock(mutex);
    largest = std::max(largest, part);
  });
  return std::bit_cast<float>(std::min(largest, kInfinity));
}

OrderFreeSum SumSquares(const float* values, int64_t count, float maximum) {
  return Sum<Square>(values, count, maximum);
}

OrderFreeSum SumMagnitudes(const float* values, int64_t count, float maximum) {
  return Sum<Magnitude>(values, count, maximum);
}

double NormOf(const OrderFreeSum& sum, float maximum) { return std::sqrt(ValueOf<Square>(sum, maximum)); }

double OneNormOf(const OrderFreeSum& sum, float maximum) { return ValueOf<Magnitude>(sum, maximum); }

double ClipFactor(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace weft
