#include "weft/core/reproducible_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <type_traits>
#include <utility>

#include "weft/core/parallel.h"
#include "weft/core/vector_clones.h"

namespace weft {
namespace {

__extension__ using Wide = __int128;

constexpr int kLevelBits = 48;
constexpr int kLimbBits = 40;
constexpr int kMaxBits = kLevelBits - 1;
constexpr int64_t kLanes = 16;
constexpr int64_t kGrain = int64_t{64} * 1024;
// In values. Small enough that no 64-bit lane overflows (it holds up to 2^15 terms), and that a block which
// must be summed again is still in a cache.
constexpr int64_t kBlock = 2048 * kLanes;
// In values. Each value takes so many instructions that hardware prefetching does not run far enough ahead.
// Measured with 116 MB on a processor with 2 MiB of L2 cache: 14 ms with this prefetch, 32 ms without.
constexpr int64_t kPrefetchAhead = 1024;

// The two kinds of terms. Terms of floats in a unit that is a power of two are exact in double.
// TermPlus: the term plus `addend`, in which a term that is exact is not rounded by itself. T: type of the
// values.
struct Square {
  static double Term(double value) { return value * value; }
  template <typename T>
  static double TermPlus(double value, double addend) {
    // The square of a double is rounded first, so that its sum has the same bits on every processor.
#ifdef __FMA__
    if constexpr (std::is_same_v<T, float>) return __builtin_fma(value, value, addend);
#endif
    return value * value + addend;
  }
};
struct Magnitude {
  static double Term(double value) { return std::abs(value); }
  template <typename T>
  static double TermPlus(double value, double addend) {
    return std::abs(value) + addend;
  }
};

// The lowest level at which `term` does not exceed 2^kMaxBits multiples; the highest one for terms beyond it.
// Only finite doubles beside an infinite one, which has no unit, are beyond: then the sum is infinite anyway.
int LevelOf(double term) {
  int exponent;
  const double fraction = std::frexp(term, &exponent);  // In [1/2, 1).
  if (fraction == 0.5) --exponent;                      // The smallest exponent with term <= 2^exponent.
  const auto level = static_cast<int>(std::ceil((exponent - kMaxBits) / static_cast<double>(kLevelBits)));
  return std::min(level, ReproducibleSum::kHighestLevel);
}

struct BlockSum {
  Wide upper, lower;  // In multiples at the level, and at the level below.
  bool fits;          // False if a term is NaN or has 2^kMaxBits multiples or more.
};

// Adding 1.5 * 2^52 rounds a term to an integer; adding 1.5 * 2^4 rounds it to a multiple of 2^-48. The low
// bits of the sum's mantissa then hold the rounded value as an integer. For multiples at level j, both are
// multiplied by 2^(48 j).
constexpr double kRoundToOnes = 0x1.8p52;
constexpr double kRoundToLower = 0x1.8p4;

// Sums the terms of values * factor. kScales is false for a factor of 1. REQUIRES: count <= kBlock.
template <typename Kind, bool kScales, typename T>
WEFT_VECTOR_CLONES BlockSum SumBlock(const T* values, int64_t count, double factor, int level) {
  const double to_upper = std::ldexp(kRoundToOnes, level * kLevelBits);
  const double to_lower = std::ldexp(kRoundToLower, level * kLevelBits);
  const double to_both = to_upper + to_lower;
  uint64_t uppers[kLanes] = {};
  uint64_t lowers[kLanes] = {};
  uint64_t bits[kLanes] = {};  // All bits that are set in any sum with to_upper.
  const auto add = [&](int64_t lane, T value) {
    const double in_unit = kScales ? static_cast<double>(value) * factor : static_cast<double>(value);
    const double upper = Kind::template TermPlus<T>(in_unit, to_upper);
    // The difference is to_lower without the term's multiples, and exact.
    const double lower = Kind::template TermPlus<T>(in_unit, to_both - upper);
    uppers[lane] += std::bit_cast<uint64_t>(upper);
    lowers[lane] += std::bit_cast<uint64_t>(lower);
    bits[lane] |= std::bit_cast<uint64_t>(upper);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __builtin_prefetch(values + std::min(i + kPrefetchAhead, count - 1));
    for (int64_t lane = 0; lane < kLanes; ++lane) add(lane, values[i + lane]);
  }
  const int64_t rest = count - i;
  for (int64_t lane = 0; lane < rest; ++lane) add(lane, values[i + lane]);
  BlockSum sum = {0, 0, true};
  const auto upper_bits = std::bit_cast<uint64_t>(to_upper);
  const auto lower_bits = std::bit_cast<uint64_t>(to_lower);
  uint64_t all_bits = upper_bits;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const auto added = static_cast<uint64_t>(i / kLanes + (lane < rest ? 1 : 0));
    sum.upper += static_cast<int64_t>(uppers[lane] - added * upper_bits);
    sum.lower += static_cast<int64_t>(lowers[lane] - added * lower_bits);
    all_bits |= bits[lane];
  }
  // A term of 2^kMaxBits multiples or more, infinity or NaN sets a bit above those of smaller terms.
  sum.fits = all_bits - upper_bits < uint64_t{1} << kMaxBits;
  return sum;
}

size_t LimbIndex(int level, size_t limb) {
  return static_cast<size_t>(level - ReproducibleSum::kLowestLevel) * ReproducibleSum::kLimbs + limb;
}

void AddAt(int level, Wide value, ReproducibleSum& sum) {
  for (size_t limb = 0; limb + 1 < ReproducibleSum::kLimbs; ++limb) {
    sum.numbers[LimbIndex(level, limb)] += static_cast<int64_t>(value & ((Wide{1} << kLimbBits) - 1));
    value >>= kLimbBits;
  }
  sum.numbers[LimbIndex(level, ReproducibleSum::kLimbs - 1)] += static_cast<int64_t>(value);
}

Wide SumAt(int level, const ReproducibleSum& sum) {
  Wide value = 0;
  for (size_t limb = ReproducibleSum::kLimbs; limb-- > 0;) {
    value = (value << kLimbBits) + sum.numbers[LimbIndex(level, limb)];
  }
  return value;
}

// The partial sum of one thread.
template <typename Kind, typename T>
class PartialSum {
 public:
  explicit PartialSum(double unit) : factor_(1.0 / unit) {}

  void Add(const T* values, int64_t count) {
    // Without a look at the first value, most first blocks would be summed twice.
    if (std::exchange(is_first_, false)) RaiseLevelFor(values[0]);
    BlockSum block = SumOf(values, count);
    if (!block.fits) {
      const T maximum = MaxMagnitude(values, count);
      if (!std::isfinite(maximum)) {
        ++sum_.numbers.back();
        return;
      }
      RaiseLevelFor(maximum);
      block = SumOf(values, count);
    }
    upper_ += block.upper;
    lower_ += block.lower;
  }
  const ReproducibleSum& Finish() {
    AddPending();
    return sum_;
  }

 private:
  BlockSum SumOf(const T* values, int64_t count) const {
    return (factor_ == 1.0 ? SumBlock<Kind, false, T> : SumBlock<Kind, true, T>)(values, count, factor_,
                                                                                 level_);
  }
  void RaiseLevelFor(T value) {
    const double term = Kind::Term(static_cast<double>(value) * factor_);
    if (term == 0.0 || !std::isfinite(term)) return;
    const int level = LevelOf(term);
    if (level <= level_) return;
    AddPending();
    level_ = level;
  }
  void AddPending() {
    AddAt(level_, upper_, sum_);
    AddAt(level_ - 1, lower_, sum_);
    upper_ = lower_ = 0;
  }

  const double factor_;  // Converts values to the unit: a power of two.
  ReproducibleSum sum_;
  bool is_first_ = true;
  // The level of the values so far. Their remainders are summed at the level below.
  int level_ = ReproducibleSum::kLowestLevel + 1;
  Wide upper_ = 0, lower_ = 0;  // Pending sums at `level_` and at the level below, not yet in `sum_`.
};

template <typename Kind, typename T>
ReproducibleSum Sum(const T* values, int64_t count, double unit) {
  ReproducibleSum total;
  std::mutex mutex;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    PartialSum<Kind, T> part(unit);
    for (int64_t block = begin; block < end; block += kBlock) {
      part.Add(values + block, std::min(end - block, kBlock));
    }
    const std::lock_guard lock(mutex);
    total += part.Finish();
  });
  return total;
}

// MaxMagnitude. `Bits`: unsigned integer of the size of T.
template <typename Bits, typename T>
T Largest(const T* values, int64_t count) {
  // Without the sign bit, floats are ordered like their bit patterns as integers; NaN is above infinity.
  constexpr Bits kMagnitude = ~Bits{0} >> 1;
  constexpr auto kInfinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  Bits largest = 0;
  std::mutex mutex;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    Bits part = 0;
    for (int64_t i = begin; i < end; ++i) part = std::max(part, std::bit_cast<Bits>(values[i]) & kMagnitude);
    const std::lock_guard lock(mutex);
    largest = std::max(largest, part);
  });
  return std::bit_cast<T>(std::min(largest, kInfinity));
}

double ValueOf(const ReproducibleSum& sum) {
  if (sum.numbers.back() != 0) return std::numeric_limits<double>::infinity();
  for (int level = ReproducibleSum::kHighestLevel; level > ReproducibleSum::kLowestLevel; --level) {
    Wide upper = SumAt(level, sum);
    if (upper == 0) continue;  // No term has this level: the sum at the largest term's level is not zero.
    const Wide lower = SumAt(level - 1, sum);
    upper += lower >> kLevelBits;
    const auto rest = static_cast<double>(lower & ((Wide{1} << kLevelBits) - 1));
    return std::ldexp(std::ldexp(static_cast<double>(upper), kLevelBits) + rest, (level - 1) * kLevelBits);
  }
  return 0.0;
}

}  // namespace

float MaxMagnitude(const float* values, int64_t count) { return Largest<uint32_t>(values, count); }

double MaxMagnitude(const double* values, int64_t count) { return Largest<uint64_t>(values, count); }

double UnitOf(double max_magnitude) {
  if (max_magnitude == 0.0 || !std::isfinite(max_magnitude)) return 1.0;
  // Products with the scale of any level that values need stay within the range of double.
  return std::ldexp(1.0, std::clamp(std::ilogb(max_magnitude), -680, 900));
}

ReproducibleSum& ReproducibleSum::operator+=(const ReproducibleSum& other) {
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += other.numbers[i];
  return *this;
}

ReproducibleSum SumSquares(const float* values, int64_t count, double unit) {
  return Sum<Square>(values, count, unit);
}

ReproducibleSum SumSquares(const double* values, int64_t count, double unit) {
  return Sum<Square>(values, count, unit);
}

ReproducibleSum SumMagnitudes(const float* values, int64_t count, double unit) {
  return Sum<Magnitude>(values, count, unit);
}

ReproducibleSum SumMagnitudes(const double* values, int64_t count, double unit) {
  return Sum<Magnitude>(values, count, unit);
}

double TwoNormOf(const ReproducibleSum& sum, double unit) { return std::sqrt(ValueOf(sum)) * unit; }

double OneNormOf(const ReproducibleSum& sum, double unit) { return ValueOf(sum) * unit; }

double ClipFactor(double norm, double max_norm) {
  if (max_norm == kNoClipping) return 1.0;  // Also where the norm is infinite.
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace weft
