#include "src/comm/codec/delta_codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kCount = 5 * kBlock + 17;

// Numbers as bit patterns, so that NaNs compare equal.
using Words = std::vector<uint32_t>;

const std::byte* BytesOf(const Words& words) { return reinterpret_cast<const std::byte*>(words.data()); }
std::byte* BytesOf(Words& words) { return reinterpret_cast<std::byte*>(words.data()); }

Words Draw(const std::function<uint32_t(std::mt19937&, int64_t)>& draw, int64_t count = kCount) {
  std::mt19937 random(7);
  Words words;
  for (int64_t i = 0; i < count; ++i) words.push_back(draw(random, i));
  return words;
}

Words RandomWords(int64_t count = kCount) {
  return Draw([](std::mt19937& random, int64_t) { return static_cast<uint32_t>(random()); }, count);
}

// Random weights, and the same weights after an update of at most `rate`.
Words Weights(int64_t count = kCount) {
  std::normal_distribution<float> normal(0, 0.02F);
  return Draw([&](std::mt19937& random, int64_t) { return std::bit_cast<uint32_t>(normal(random)); }, count);
}
Words Updated(const Words& weights, float rate) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> size(-rate, rate);
  Words updated;
  for (const uint32_t word : weights) {
    updated.push_back(std::bit_cast<uint32_t>(std::bit_cast<float>(word) + size(random)));
  }
  return updated;
}

// Encodes `now` against `base`. The result has exactly the encoded bytes, so that a sanitizer detects
// accesses beyond.
std::vector<std::byte> Encoded(const Words& base, const Words& now) {
  const auto count = static_cast<int64_t>(now.size());
  std::vector<std::byte> delta(DeltaCapacity(count));
  const size_t bytes = EncodeDelta(BytesOf(now), BytesOf(base), count, delta.data());
  EXPECT_LE(bytes, delta.size());
  return {delta.begin(), delta.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

void ExpectSameBits(const Words& base, const Words& now, const std::string& what) {
  const std::vector<std::byte> delta = Encoded(base, now);
  Words restored = base;
  ASSERT_TRUE(ApplyDelta(delta.data(), static_cast<int64_t>(now.size()), BytesOf(restored))) << what;
  EXPECT_EQ(restored, now) << what;
}

double CompressionRatio(const Words& base, const Words& now) {
  return static_cast<double>(Encoded(base, now).size()) / static_cast<double>(4 * now.size());
}

TEST(DeltaCodec, EncodesAnyBitPatternAgainstAnyBase) {
  std::vector<Words> states = {RandomWords(), Weights(), Updated(Weights(), 3e-4F), Updated(Weights(), 10)};
  for (const float value :
       {0.0F, -0.0F, 1.0F, -1.0F, std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::lowest(), std::nanf("1")}) {
    states.emplace_back(kCount, std::bit_cast<uint32_t>(value));
  }
  for (size_t from = 0; from < states.size(); ++from) {
    for (size_t to = 0; to < states.size(); ++to) {
      ExpectSameBits(states[from], states[to], std::to_string(from) + " to " + std::to_string(to));
    }
  }
}

// Covers all widths of a block, with exceptions of all sizes in few or many of its codes.
TEST(DeltaCodec, RestoresDeltasOfAnyMixOfTwoSizes) {
  for (int width = 0; width <= 32; ++width) {
    for (int further = width; further <= 32; ++further) {
      for (const int64_t apart : {2, 19, 256}) {
        const Words now = Draw([&](std::mt19937& random, int64_t i) {
          const int bits = i % apart == 1 ? further : width;
          const uint32_t magnitude = bits == 0 ? 0 : static_cast<uint32_t>(random()) >> (32 - bits);
          return 0x3F800000U + (i % 3 == 0 ? 0U - magnitude : magnitude);
        });
        ExpectSameBits(Words(kCount, 0x3F800000U), now,
                       std::to_string(width) + " and " + std::to_string(further) + " bits");
      }
    }
  }
}

TEST(DeltaCodec, RestoresSlicesOfAnyLength) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock}) {
    ExpectSameBits(Weights(count), Updated(Weights(count), 1e-3F), std::to_string(count));
  }
}

TEST(DeltaCodec, StaysWithinItsCapacityForRandomBits) {
  EXPECT_LE(CompressionRatio(RandomWords(), Updated(RandomWords(), 1e30F)), 1.02);
}

// The figures in the docs and in the headers.
TEST(DeltaCodec, EncodesAnUpdateInTwoThirdsOfItsBytesAndNoUpdateInOnePercent) {
  constexpr int64_t kMany = 64 * kBlock;
  const Words weights = Weights(kMany);
  EXPECT_LT(CompressionRatio(weights, Updated(weights, 3e-4F)), 0.71);
  EXPECT_LT(CompressionRatio(weights, Updated(weights, 3e-6F)), 0.5);
  EXPECT_LT(CompressionRatio(weights, weights), 0.01);
}

TEST(DeltaCodec, RejectsEveryOtherBase) {
  const Words base = Weights();
  const std::vector<std::byte> delta = Encoded(base, Updated(base, 1e-3F));
  const auto is_rejected = [&](Words other) { return !ApplyDelta(delta.data(), kCount, BytesOf(other)); };
  EXPECT_FALSE(is_rejected(base));
  Words one_bit = base;
  one_bit[kBlock + 3] ^= 1;
  EXPECT_TRUE(is_rejected(one_bit));
  const auto each = [&](const std::function<float(float)>& change) {
    Words others = base;
    for (uint32_t& word : others) word = std::bit_cast<uint32_t>(change(std::bit_cast<float>(word)));
    return others;
  };
  EXPECT_TRUE(is_rejected(each([](float weight) { return weight / 2; })));
  EXPECT_TRUE(is_rejected(each([](float weight) { return 4 * weight; })));
  EXPECT_TRUE(is_rejected(each([](float weight) { return -weight; })));
  EXPECT_TRUE(is_rejected(each([](float) { return 1.0F; })));
  Words two_signs = base;
  two_signs[1] ^= 0x80000000U;
  two_signs[2] ^= 0x80000000U;
  EXPECT_TRUE(is_rejected(two_signs));
  Words swapped = base;
  std::swap(swapped[5], swapped[6]);
  EXPECT_TRUE(is_rejected(swapped));
  Words blocks_swapped = base;
  std::swap_ranges(blocks_swapped.begin(), blocks_swapped.begin() + kBlock, blocks_swapped.begin() + kBlock);
  EXPECT_TRUE(is_rejected(blocks_swapped));
}

TEST(DeltaCodec, RejectsABaseOfZerosInsteadOfOnes) {
  const Words ones(kCount, std::bit_cast<uint32_t>(1.0F));
  const std::vector<std::byte> delta = Encoded(ones, Updated(ones, 1e-3F));
  Words zeros(kCount, 0);
  EXPECT_FALSE(ApplyDelta(delta.data(), kCount, BytesOf(zeros)));
}

TEST(DeltaCodec, RejectsMalformedSlicesAndWrongCounts) {
  const Words base = Weights();
  const std::vector<std::byte> good = Encoded(base, Updated(base, 1e-3F));
  const auto is_rejected = [&](const std::vector<std::byte>& bytes, int64_t count) {
    Words numbers = base;
    numbers.resize(2 * base.size());
    return !ApplyDelta(bytes.data(), count, BytesOf(numbers));
  };
  EXPECT_TRUE(is_rejected(good, kCount - 1));
  EXPECT_TRUE(is_rejected(good, kCount + 1));
  EXPECT_TRUE(is_rejected(good, kCount - kBlock));
  for (const uint32_t bytes :
       {0U, 3U, 7U, 8U, 10U, 100U, static_cast<uint32_t>(good.size() - 1), 0xFFFFFFFFU}) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data(), &bytes, sizeof(bytes));
    EXPECT_TRUE(is_rejected(bad, kCount)) << bytes;
  }
  const auto with_byte = [&](size_t position, uint8_t byte) {
    std::vector<std::byte> bad = good;
    bad[position] = std::byte{byte};
    return bad;
  };
  constexpr size_t kWidth = 8;
  EXPECT_TRUE(is_rejected(with_byte(kWidth, 33), kCount));
  EXPECT_TRUE(is_rejected(with_byte(kWidth, 255), kCount));
  EXPECT_TRUE(is_rejected(with_byte(kWidth + 2, 5), kCount));
}

}  // namespace
}  // namespace weft
