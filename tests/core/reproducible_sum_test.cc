#include "weft/core/reproducible_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Values of both signs, whose magnitudes differ by factors of up to 2^20 and more.
std::vector<float> MakeValues(size_t count, uint64_t seed, int exponent = 0) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(std::ldexp(std::uniform_real_distribution<double>(-1.0, 1.0)(random),
                                          exponent - static_cast<int>(random() % 20)));
  }
  return values;
}

double NormInOnePiece(const std::vector<float>& values) {
  return TwoNormOf(SumSquares(values.data(), static_cast<int64_t>(values.size())));
}

// Sums the values in pieces with random boundaries, as if each piece were on its own rank.
ReproducibleSum SumInPieces(const std::vector<float>& values, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> cuts = {0, static_cast<int64_t>(values.size())};
  for (int i = 0; i < 9; ++i) cuts.push_back(static_cast<int64_t>(random() % (values.size() + 1)));
  std::sort(cuts.begin(), cuts.end());
  ReproducibleSum total;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    total += SumSquares(values.data() + cuts[i], cuts[i + 1] - cuts[i]);
  }
  return total;
}

TEST(ReproducibleSum, GivesTheSameBitsForEveryPartitionAndOrder) {
  for (const size_t count : {1, 2, 7, 1000, 70001}) {
    std::vector<float> values = MakeValues(count, count);
    const double norm = NormInOnePiece(values);
    for (uint64_t seed = 0; seed < 5; ++seed) {
      EXPECT_EQ(TwoNormOf(SumInPieces(values, seed)), norm) << count;
      std::shuffle(values.begin(), values.end(), std::mt19937_64(seed));
      EXPECT_EQ(NormInOnePiece(values), norm) << count;
    }
  }
}

__extension__ using Wide = __int128;

// The sum of terms by its definition: see Note [Reproducible summation].
double SumByDefinition(const std::vector<double>& terms) {
  double largest = 0.0;
  for (const double term : terms) largest = std::max(largest, term);
  int level = ReproducibleSum::kLowestLevel + 1;
  while (largest > std::ldexp(1.0, 47 + 48 * level)) ++level;
  Wide upper = 0;
  Wide lower = 0;
  for (const double term : terms) {
    const double multiples = std::ldexp(term, -48 * level);
    const double rounded = std::nearbyint(multiples);
    upper += static_cast<int64_t>(rounded);
    lower += static_cast<int64_t>(std::nearbyint(std::ldexp(multiples - rounded, 48)));
  }
  upper += lower >> 48;
  const auto rest = static_cast<double>(lower & ((Wide{1} << 48) - 1));
  return std::ldexp(std::ldexp(static_cast<double>(upper), 48) + rest, 48 * (level - 1));
}

// The definition fixes the bits: a faster kernel may not change them.
TEST(ReproducibleSum, HasTheBitsOfItsDefinition) {
  for (const int exponent : {-140, -100, -25, -24, -23, -1, 0, 1, 60, 120}) {
    for (const size_t count : {1, 15, 16, 17, 1000, 40000}) {
      std::vector<float> values = MakeValues(count, count + 2, exponent);
      if (count > 1) values[count / 2] = std::ldexp(1.0F, exponent);  // At the bound of a level for some.
      std::vector<double> squares;
      std::vector<double> magnitudes;
      for (const double value : values) {
        squares.push_back(value * value);
        magnitudes.push_back(std::abs(value));
      }
      const auto size = static_cast<int64_t>(count);
      EXPECT_EQ(NormInOnePiece(values), std::sqrt(SumByDefinition(squares))) << exponent << ", " << count;
      EXPECT_EQ(OneNormOf(SumMagnitudes(values.data(), size)), SumByDefinition(magnitudes)) << count;
      // The same values as doubles, and in another unit.
      const std::vector<double> wide(values.begin(), values.end());
      EXPECT_EQ(TwoNormOf(SumSquares(wide.data(), size, 1.0)), NormInOnePiece(values)) << count;
      const double unit = UnitOf(MaxMagnitude(wide.data(), size));
      EXPECT_EQ(TwoNormOf(SumSquares(values.data(), size, unit), unit),
                TwoNormOf(SumSquares(wide.data(), size, unit), unit));
    }
  }
}

TEST(ReproducibleSum, GivesTheSameOneNormForEveryOrderAndWithinItsErrorBound) {
  for (const int exponent : {-140, -60, 0, 60, 120}) {
    for (const size_t count : {0, 1, 2, 7, 1000, 70001}) {
      std::vector<float> values = MakeValues(count, count + 1, exponent);
      double exact = 0.0;
      for (const float value : values) exact += std::abs(static_cast<double>(value));
      const auto norm = [&values] {
        const auto n = static_cast<int64_t>(values.size());
        ReproducibleSum total = SumMagnitudes(values.data(), n / 3);
        total += SumMagnitudes(values.data() + n / 3, n - n / 3);
        return OneNormOf(total);
      };
      const double first = norm();
      EXPECT_NEAR(first, exact, exact * static_cast<double>(count + 1) * 0x1p-48) << count;
      std::shuffle(values.begin(), values.end(), std::mt19937_64(count));
      EXPECT_EQ(norm(), first);
    }
  }
}

TEST(ReproducibleSum, GivesTheSameBitsOnAnyNumberOfThreads) {
  const std::vector<float> values = MakeValues(300000, 1);
  const int threads = ThreadCount();
  SetThreadCount(1);
  const double norm = NormInOnePiece(values);
  SetThreadCount(4);
  EXPECT_EQ(NormInOnePiece(values), norm);
  SetThreadCount(threads);
}

TEST(ReproducibleSum, StaysWithinItsErrorBound) {
  for (const int exponent : {-140, -120, -60, 0, 60, 127}) {
    for (const size_t count : {1, 3, 1000, 100000}) {
      const std::vector<float> values = MakeValues(count, count, exponent);
      long double exact = 0.0L;
      for (const float value : values) exact += static_cast<long double>(value) * value;
      exact = std::sqrt(exact);
      const auto bound = exact * (static_cast<long double>(count) * 0x1p-49L + 0x1p-51L);
      EXPECT_NEAR(NormInOnePiece(values), exact, bound) << "2^" << exponent << ", " << count << " values";
    }
  }
}

TEST(ReproducibleSum, IsExactForEqualValues) {
  EXPECT_EQ(NormInOnePiece(std::vector<float>(4096 * 16, 0.75F)), 0.75 * 256.0);
  EXPECT_EQ(NormInOnePiece({-std::numeric_limits<float>::max()}), std::numeric_limits<float>::max());
  EXPECT_EQ(NormInOnePiece({std::numeric_limits<float>::denorm_min()}),
            std::numeric_limits<float>::denorm_min());
}

TEST(ReproducibleSum, IsZeroForNoValuesAndForZeros) {
  EXPECT_EQ(NormInOnePiece({}), 0.0);
  EXPECT_EQ(NormInOnePiece({0.0F, -0.0F}), 0.0);
}

TEST(ReproducibleSum, AddsTheSumsOfManyRanksWithoutOverflow) {
  // The sum over 2^20 ranks: limbs may exceed their 40 bits without overflow.
  const std::vector<float> values(5000, std::nextafter(2.0F, 0.0F));
  ReproducibleSum sum = SumSquares(values.data(), 5000);
  for (int64_t& number : sum.numbers) number <<= 20;
  EXPECT_NEAR(TwoNormOf(sum), values[0] * std::sqrt(5000.0 * 0x1p20), 1e-8);
}

// Terms at the bounds of levels and on rounding ties between them, together with terms that are levels away.
TEST(ReproducibleSum, AddsSumsOfDifferentLevels) {
  std::vector<float> values;
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0F, exponent);
    values.insert(values.end(), {power, -std::nextafter(power, kInfinity), std::nextafter(power, 0.0F)});
    const double norm = NormInOnePiece(values);
    double exact = 0.0;  // Summed from the smallest to the largest.
    for (const float value : values) exact += static_cast<double>(value) * value;
    EXPECT_NEAR(norm, std::sqrt(exact), std::sqrt(exact) * 0x1p-44) << exponent;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      EXPECT_EQ(TwoNormOf(SumInPieces(values, seed)), norm) << exponent;
      std::vector<float> shuffled = values;
      std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(seed));
      EXPECT_EQ(NormInOnePiece(shuffled), norm) << exponent;
    }
  }
}

// Doubles over the range of their exponents, in every order and partition.
TEST(ReproducibleSum, SumsDoublesInAUnitNearTheLargest) {
  for (const int exponent : {-700, -20, 0, 20, 1000}) {
    for (const int64_t count : {1, 7, 70001}) {
      std::mt19937_64 random(static_cast<uint64_t>(count));
      std::vector<double> values(static_cast<size_t>(count));
      for (double& value : values) {
        value = std::ldexp(std::uniform_real_distribution<double>(-1.0, 1.0)(random),
                           exponent - static_cast<int>(random() % 20));
      }
      const double unit = UnitOf(MaxMagnitude(values.data(), count));
      long double squares = 0.0L;
      long double magnitudes = 0.0L;
      for (const double value : values) {
        const long double in_unit = static_cast<long double>(value) / unit;
        squares += in_unit * in_unit;
        magnitudes += std::abs(in_unit);
      }
      const double two = TwoNormOf(SumSquares(values.data(), count, unit), unit) / unit;
      const double one = OneNormOf(SumMagnitudes(values.data(), count, unit), unit) / unit;
      EXPECT_NEAR(two, std::sqrt(squares), std::sqrt(squares) * 0x1p-50L) << exponent << ", " << count;
      EXPECT_NEAR(one, magnitudes, magnitudes * 0x1p-50L) << exponent << ", " << count;
      std::shuffle(values.begin(), values.end(), random);
      ReproducibleSum parts = SumSquares(values.data(), count / 3, unit);
      parts += SumSquares(values.data() + count / 3, count - count / 3, unit);
      EXPECT_EQ(TwoNormOf(parts, unit) / unit, two);
    }
  }
}

TEST(ReproducibleSum, AddsFloatsAndDoublesInOneUnit) {
  const float narrow = 3.0F;
  const double wide = 4.0;
  const double unit = UnitOf(std::ldexp(1.0, 300));
  ReproducibleSum sum = SumSquares(&narrow, 1, 4.0);
  sum += SumSquares(&wide, 1, 4.0);
  EXPECT_EQ(TwoNormOf(sum, 4.0), 5.0);
  EXPECT_EQ(unit, std::ldexp(1.0, 300));
  EXPECT_EQ(UnitOf(0.0), 1.0);
  EXPECT_EQ(UnitOf(std::numeric_limits<double>::infinity()), 1.0);
}

TEST(ReproducibleSum, IsInfiniteIfAnyValueIsNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    for (const size_t place : {0, 57, 40000, 69999}) {
      std::vector<float> values = MakeValues(70000, 3);
      values[place] = bad;
      EXPECT_EQ(TwoNormOf(SumInPieces(values, place)), static_cast<double>(kInfinity)) << place;
      EXPECT_EQ(OneNormOf(SumMagnitudes(values.data(), 70000)), static_cast<double>(kInfinity)) << place;
    }
  }
}

// Beside an infinite value there is no unit, and a finite one may be above all levels.
TEST(ReproducibleSum, IsInfiniteBesideFiniteDoublesBeyondAllLevels) {
  std::vector<double> values(70000, 1e150);
  values[69999] = std::numeric_limits<double>::infinity();
  const double unit = UnitOf(MaxMagnitude(values.data(), 70000));
  EXPECT_EQ(TwoNormOf(SumSquares(values.data(), 70000, unit), unit), static_cast<double>(kInfinity));
  EXPECT_EQ(OneNormOf(SumMagnitudes(values.data(), 70000, unit), unit), static_cast<double>(kInfinity));
}

TEST(MaxMagnitude, IsInfiniteIfAnyValueIsNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
    std::vector<float> values = MakeValues(100, 3);
    values[57] = bad;
    EXPECT_EQ(MaxMagnitude(values.data(), 100), kInfinity);
  }
}

TEST(MaxMagnitude, IgnoresTheSign) {
  const float values[] = {1.0F, -3.5F, 2.0F};
  EXPECT_EQ(MaxMagnitude(values, 3), 3.5F);
}

TEST(ClipFactor, ScalesOnlyNormsAboveTheMaximum) {
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1.0);
  EXPECT_EQ(ClipFactor(0.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(ClipFactor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(ClipFactor(4.0, 0.0), 0.0);
  EXPECT_EQ(ClipFactor(4.0, kNoClipping), 1.0);
  EXPECT_EQ(ClipFactor(std::numeric_limits<double>::infinity(), kNoClipping), 1.0);
}

}  // namespace
}  // namespace weft
