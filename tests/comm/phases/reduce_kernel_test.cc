// Checks the reduction kernel against a plain recursive loop, bit by bit.
#include "src/comm/phases/reduce_kernel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/comm/base/copy_bytes.h"

namespace weft {
namespace {

constexpr int64_t kCounts[] = {0, 1, 1023, 1024, 1025, 4099};

float Widen(BF16 value) { return ToFloat(value); }
float Widen(F16 value) { return ToFloat(value); }
template <typename T>
T Widen(T value) {
  return value;
}

template <typename T, typename Wide>
T Narrow(Wide value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return ToBF16(value);
  } else if constexpr (std::is_same_v<T, F16>) {
    return ToF16(value);
  } else {
    return value;
  }
}

// Random values without NaN and infinity, whose sums have no unique bits.
template <typename T>
T RandomValue(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    const double mantissa = std::uniform_real_distribution<double>(-2, 2)(random);
    const int exponent = std::uniform_int_distribution<int>(-9, 9)(random);
    return Narrow<T>(static_cast<float>(std::ldexp(mantissa, exponent)));
  }
}

template <typename T>
std::vector<std::vector<T>> RandomLeaves(int leaves, int64_t count, std::mt19937_64& random) {
  std::vector<std::vector<T>> values(static_cast<size_t>(leaves));
  for (auto& leaf : values) {
    for (int64_t i = 0; i < count; ++i) leaf.push_back(RandomValue<T>(random));
  }
  return values;
}

template <typename Wide>
Wide Fold(Wide a, Wide b, ReduceOp op) {
  if (op == ReduceOp::kMax) return a > b ? a : b;
  if (op == ReduceOp::kMin) return a < b ? a : b;
  if constexpr (std::is_integral_v<Wide>) {
    // Wraps, as sums and products of 64 bits without a sign do.
    const auto x = static_cast<uint64_t>(static_cast<int64_t>(a));
    const auto y = static_cast<uint64_t>(static_cast<int64_t>(b));
    switch (op) {
      case ReduceOp::kProduct:
        return static_cast<Wide>(x * y);
      case ReduceOp::kBitAnd:
        return static_cast<Wide>(x & y);
      case ReduceOp::kBitOr:
        return static_cast<Wide>(x | y);
      case ReduceOp::kBitXor:
        return static_cast<Wide>(x ^ y);
      default:
        return static_cast<Wide>(x + y);
    }
  } else {
    return op == ReduceOp::kProduct ? a * b : a + b;
  }
}

template <typename T>
std::vector<ReduceOp> OpsOf() {
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};
  if (std::is_integral_v<T>) ops.insert(ops.end(), {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor});
  return ops;
}

// T(lo, n) of element i.
template <typename T>
auto Expected(const std::vector<std::vector<T>>& leaves, int lo, int n, size_t i, ReduceOp op)
    -> decltype(Widen(T{})) {
  if (n == 1) return Widen(leaves[static_cast<size_t>(lo)][i]);
  int left = 1;
  while (2 * left < n) left *= 2;
  return Fold(Expected(leaves, lo, left, i, op), Expected(leaves, lo + left, n - left, i, op), op);
}

ReduceProgram ProgramOf(int leaves) {
  return BuildReduceProgram(0, leaves, [](int lo, int n) { return n == 1 ? lo : -1; });
}

template <typename T>
std::vector<LeafSource> SourcesOf(const std::vector<std::vector<T>>& leaves) {
  std::vector<LeafSource> sources;
  for (const auto& leaf : leaves) {
    sources.push_back({reinterpret_cast<const std::byte*>(leaf.data()), kDTypeOf<T>});
  }
  return sources;
}

template <typename T>
ReduceTarget TargetOf(std::vector<T>& out, float scale = 1.0F, bool nontemporal = false) {
  return {reinterpret_cast<std::byte*>(out.data()), kDTypeOf<T>, scale, nontemporal};
}

template <typename T>
void ExpectSameBits(const std::vector<T>& actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  if (actual.empty()) return;
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(T)), 0);
}

template <typename T>
class ReduceKernel : public ::testing::Test {
 protected:
  std::mt19937_64 random_{7};

  static std::vector<T> ExpectedOf(const std::vector<std::vector<T>>& leaves, ReduceOp op,
                                   float scale = 1.0F) {
    std::vector<T> expected;
    for (size_t i = 0; i < leaves[0].size(); ++i) {
      auto value = Expected(leaves, 0, static_cast<int>(leaves.size()), i, op);
      if constexpr (!std::is_integral_v<T>) value *= scale;
      expected.push_back(Narrow<T>(value));
    }
    return expected;
  }
};
using Types = ::testing::Types<float, BF16, F16, int32_t, int64_t, double, int16_t, int8_t, uint8_t>;
TYPED_TEST_SUITE(ReduceKernel, Types);

TYPED_TEST(ReduceKernel, GivesTheBitsOfThePlainLoop) {
  for (const int leaves : {1, 2, 3, 4, 5, 8, 13, 16}) {
    for (const int64_t count : kCounts) {
      for (const ReduceOp op : OpsOf<TypeParam>()) {
        SCOPED_TRACE(absl::StrCat(leaves, " leaves, ", count, " elements, ", std::string(Name(op))));
        const auto values = RandomLeaves<TypeParam>(leaves, count, this->random_);
        std::vector<TypeParam> out(static_cast<size_t>(count));
        RunReduce(ProgramOf(leaves), SourcesOf(values), op, TargetOf(out), count);
        ExpectSameBits(out, this->ExpectedOf(values, op));
      }
    }
  }
}

TYPED_TEST(ReduceKernel, GivesTheSameBitsInPlaceOfAnyLeaf) {
  for (const int leaves : {4, 7}) {
    for (const int64_t count : kCounts) {
      for (size_t target_leaf = 0; target_leaf < static_cast<size_t>(leaves); ++target_leaf) {
        auto values = RandomLeaves<TypeParam>(leaves, count, this->random_);
        const auto expected = this->ExpectedOf(values, ReduceOp::kSum);
        auto streamed = values;
        RunReduce(ProgramOf(leaves), SourcesOf(values), ReduceOp::kSum, TargetOf(values[target_leaf]), count);
        ExpectSameBits(values[target_leaf], expected);
        RunReduce(ProgramOf(leaves), SourcesOf(streamed), ReduceOp::kSum,
                  TargetOf(streamed[target_leaf], 1.0F, /*nontemporal=*/true), count);
        ExpectSameBits(streamed[target_leaf], expected);
      }
    }
  }
}

// The target and its copies have equal or different offsets within a cache line. Memory next to them does not
// change.
TYPED_TEST(ReduceKernel, GivesTheSameBitsWithNonTemporalStores) {
  constexpr size_t kExtraElements = 24;
  for (const int leaves : {2, 3, 4, 8}) {
    for (const int64_t count : kCounts) {
      const auto values = RandomLeaves<TypeParam>(leaves, count, this->random_);
      const auto sum = this->ExpectedOf(values, ReduceOp::kSum);
      for (const auto& [out_at, copy_at] : {std::array<size_t, 2>{0, 0}, {5, 5}, {0, 3}}) {
        SCOPED_TRACE(absl::StrCat(leaves, " leaves, ", count, " elements, at ", out_at, ", ", copy_at));
        std::vector<TypeParam> out(sum.size() + kExtraElements, TypeParam{});
        std::vector<TypeParam> copy = out;
        ReduceTarget target = TargetOf(out, 1.0F, /*nontemporal=*/true);
        target.data = reinterpret_cast<std::byte*>(out.data() + out_at);
        target.copies.push_back(reinterpret_cast<std::byte*>(copy.data() + copy_at));
        std::vector<TypeParam> expected_out = out;
        std::vector<TypeParam> expected_copy = out;
        std::copy(sum.begin(), sum.end(), expected_out.begin() + static_cast<ptrdiff_t>(out_at));
        std::copy(sum.begin(), sum.end(), expected_copy.begin() + static_cast<ptrdiff_t>(copy_at));
        RunReduce(ProgramOf(leaves), SourcesOf(values), ReduceOp::kSum, target, count);
        ExpectSameBits(out, expected_out);
        ExpectSameBits(copy, expected_copy);
      }
    }
  }
}

TYPED_TEST(ReduceKernel, ScalesBeforeItRounds) {
  if constexpr (!std::is_integral_v<TypeParam>) {
    constexpr float kThird = 1.0F / 3;
    for (const int leaves : {1, 2, 3, 4, 8}) {
      for (const int64_t count : kCounts) {
        const auto values = RandomLeaves<TypeParam>(leaves, count, this->random_);
        for (const bool nontemporal : {false, true}) {
          std::vector<TypeParam> out(static_cast<size_t>(count));
          RunReduce(ProgramOf(leaves), SourcesOf(values), ReduceOp::kSum, TargetOf(out, kThird, nontemporal),
                    count);
          ExpectSameBits(out, this->ExpectedOf(values, ReduceOp::kSum, kThird));
        }
      }
    }
  }
}

TYPED_TEST(ReduceKernel, ExtremesKeepANaNFromAnyLeaf) {
  if constexpr (!std::is_integral_v<TypeParam>) {
    constexpr int kLeaves = 5;
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      for (size_t bad = 0; bad < kLeaves; ++bad) {
        auto values = RandomLeaves<TypeParam>(kLeaves, 3, this->random_);
        values[bad][1] = Narrow<TypeParam>(std::numeric_limits<float>::quiet_NaN());
        std::vector<TypeParam> out(3);
        RunReduce(ProgramOf(kLeaves), SourcesOf(values), op, TargetOf(out), 3);
        EXPECT_FALSE(std::isnan(Widen(out[0])));
        EXPECT_TRUE(std::isnan(Widen(out[1]))) << "leaf " << bad;
        EXPECT_FALSE(std::isnan(Widen(out[2])));
      }
    }
  }
}

// For example, a partial sum in f32 from another node and an input in f16.
TEST(ReduceKernelLeaves, MayMixWideAndNarrowTypes) {
  std::mt19937_64 random(8);
  constexpr int64_t kCount = 1500;
  const auto narrow = RandomLeaves<F16>(1, kCount, random);
  const auto wide = RandomLeaves<float>(1, kCount, random);
  std::vector<LeafSource> sources = SourcesOf(narrow);
  sources.push_back(SourcesOf(wide)[0]);
  std::vector<F16> out(kCount);
  RunReduce(ProgramOf(2), sources, ReduceOp::kSum, TargetOf(out), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(out[i].bits, ToF16(ToFloat(narrow[0][i]) + wide[0][i]).bits);
  }
}

TEST(CopyBytes, CopiesExactlyTheRequestedBytesAtEveryAlignment) {
  constexpr size_t kBufferBytes = 512;
  std::vector<std::byte> source(kBufferBytes);
  for (size_t i = 0; i < kBufferBytes; ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (const bool nontemporal : {false, true}) {
    for (size_t head = 0; head < 64; ++head) {
      for (const size_t bytes : {0, 1, 63, 64, 127, 128, 129, 191, 200, 255, 256, 300}) {
        for (const size_t from : {0, 1, 17}) {
          std::vector<std::byte> target(kBufferBytes, std::byte{0});
          CopyBytes(target.data() + head, source.data() + from, bytes, nontemporal);
          std::vector<std::byte> expected(kBufferBytes, std::byte{0});
          std::memcpy(expected.data() + head, source.data() + from, bytes);
          ASSERT_EQ(target, expected) << "head " << head << ", from " << from << ", " << bytes << " bytes";
        }
      }
    }
  }
}

TEST(CopyBytes, BypassesTheCachesOnlyForLargeOperations) {
  EXPECT_FALSE(ShouldBypassCaches(size_t{64} << 10));
  EXPECT_TRUE(ShouldBypassCaches(size_t{64} << 30));
}

}  // namespace
}  // namespace weft
