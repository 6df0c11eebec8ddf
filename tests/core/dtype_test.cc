#include "weft/core/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/dtypes.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// Parameters of the 16-bit formats.
struct Bf16Format {
  using Type = BF16;
  static constexpr int kMantissaBits = 7;
  static constexpr int kBias = 127;
  static Type Narrow(float value) { return ToBF16(value); }
};
struct F16Format {
  using Type = F16;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static Type Narrow(float value) { return ToF16(value); }
};

template <typename Format>
constexpr int kExponents = (1 << (15 - Format::kMantissaBits));  // One more than the largest exponent field.

template <typename Format>
bool IsNan(uint16_t bits) {
  return (bits & 0x7fff) > ((kExponents<Format> - 1) << Format::kMantissaBits);
}

// The value by the formula of IEEE 754. Doubles represent all values of both formats exactly.
template <typename Format>
double ValueOf(uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> Format::kMantissaBits;
  const int mantissa = bits & ((1 << Format::kMantissaBits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == kExponents<Format> - 1) return sign * std::numeric_limits<double>::infinity();
  const int implicit = exponent == 0 ? 0 : 1 << Format::kMantissaBits;
  return sign *
         std::ldexp(implicit + mantissa, std::max(exponent, 1) - Format::kBias - Format::kMantissaBits);
}

template <typename Format>
class HalfFormat : public ::testing::Test {};
using Formats = ::testing::Types<Bf16Format, F16Format>;
TYPED_TEST_SUITE(HalfFormat, Formats);

TYPED_TEST(HalfFormat, WidensAllValuesExactly) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = ToFloat(typename TypeParam::Type{half});
    if (IsNan<TypeParam>(half)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), ValueOf<TypeParam>(half)) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    }
  }
}

TYPED_TEST(HalfFormat, RoundTripsThroughFloatForAllValues) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint16_t back = TypeParam::Narrow(ToFloat(typename TypeParam::Type{half})).bits;
    if (IsNan<TypeParam>(half)) {
      ASSERT_TRUE(IsNan<TypeParam>(back)) << bits;
      ASSERT_EQ(back & 0x8000, half & 0x8000) << bits;
    } else {
      ASSERT_EQ(back, half);
    }
  }
}

TYPED_TEST(HalfFormat, RoundsToNearestWithTiesToEven) {
  const int infinity = (kExponents<TypeParam> - 1) << TypeParam::kMantissaBits;
  for (int low = 0; low < infinity; ++low) {
    // Above the largest finite number, use the value that an unbounded exponent range would give. A number
    // overflows from the midpoint of these two on.
    const double below = ValueOf<TypeParam>(static_cast<uint16_t>(low));
    const double above = low + 1 == infinity ? std::ldexp(1, kExponents<TypeParam> - 1 - TypeParam::kBias)
                                             : ValueOf<TypeParam>(static_cast<uint16_t>(low + 1));
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << "the midpoint is not a float";
    const float inf = std::numeric_limits<float>::infinity();
    for (const int sign : {0, 0x8000}) {
      const auto narrow = [&](float value) {
        return TypeParam::Narrow(sign == 0 ? value : -value).bits - sign;
      };
      ASSERT_EQ(narrow(middle), low % 2 == 0 ? low : low + 1);
      ASSERT_EQ(narrow(std::nextafter(middle, -inf)), low);
      ASSERT_EQ(narrow(std::nextafter(middle, inf)), low + 1);
    }
  }
}

TYPED_TEST(HalfFormat, RoundsRandomFloatsToTheNearestValue) {
  std::mt19937 random(5);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const uint16_t bits = TypeParam::Narrow(value).bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(IsNan<TypeParam>(bits));
      continue;
    }
    ASSERT_EQ((bits & 0x8000) != 0, std::signbit(value));
    const double rounded = ValueOf<TypeParam>(bits);
    if (std::isinf(rounded)) continue;  // The previous test covers overflow.
    const double error = std::abs(rounded - static_cast<double>(value));
    for (const int step : {-1, 1}) {
      const auto neighbor = static_cast<uint16_t>(bits + step);
      if ((neighbor & 0x7fff) == 0x7fff || IsNan<TypeParam>(neighbor)) continue;
      ASSERT_LE(error, std::abs(ValueOf<TypeParam>(neighbor) - static_cast<double>(value))) << value;
    }
  }
}

TYPED_TEST(HalfFormat, NarrowsEveryNanToANanOfTheSameSign) {
  for (const uint32_t payload : {1U, 0x1fffU, 0x2000U, 0xffffU, 0x10000U, 0x3fffffU, 0x400000U, 0x7fffffU}) {
    for (const uint32_t sign : {0U, 0x80000000U}) {
      const uint16_t bits = TypeParam::Narrow(std::bit_cast<float>(sign | 0x7f800000U | payload)).bits;
      EXPECT_TRUE(IsNan<TypeParam>(bits)) << payload;
      EXPECT_EQ((bits & 0x8000) != 0, sign != 0);
    }
  }
}

TEST(DType, NamesParseToTheSameDType) {
  for (const DType dtype : kDTypes) {
    ASSERT_OK_AND_ASSIGN(const DType parsed, ParseDType(Name(dtype)));
    EXPECT_EQ(parsed, dtype);
  }
  EXPECT_EQ(Name(DType::kBF16), "bf16");
}

TEST(DType, ParsingAnUnknownNameListsTheKnownNames) {
  for (const char* name : {"", "float", "F32", "f32 "}) {
    EXPECT_THAT(ParseDType(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat("'", name, "'")), HasSubstr("f32, bf16"))));
  }
}

TEST(DType, MatchesTheSizeAndKindOfItsCxxType) {
  EXPECT_EQ(SizeOf(kDTypeOf<float>), sizeof(float));
  EXPECT_EQ(SizeOf(kDTypeOf<BF16>), sizeof(BF16));
  EXPECT_EQ(SizeOf(kDTypeOf<F16>), sizeof(F16));
  EXPECT_EQ(SizeOf(kDTypeOf<int32_t>), sizeof(int32_t));
  EXPECT_EQ(SizeOf(kDTypeOf<int64_t>), sizeof(int64_t));
  EXPECT_TRUE(IsFloating(kDTypeOf<F16>));
  EXPECT_TRUE(IsFloating(kDTypeOf<double>));
  EXPECT_FALSE(IsFloating(kDTypeOf<int32_t>));
}

}  // namespace
}  // namespace weft
