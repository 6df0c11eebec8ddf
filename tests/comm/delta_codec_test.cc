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

// As bit patterns: NaNs are numbers like others.
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

// Weights, and what an update whose size is `rate` makes of them.
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

// Of exactly the bytes that they take, so that a sanitizer sees who reads or writes beyond.
std::vector<std::byte> Changes(const Words& before, const Words& now) {
  const auto count = static_cast<int64_t>(now.size());
  std::vector<std::byte> changes(DeltaCapacity(count));
  const size_t bytes = EncodeDelta(BytesOf(now), BytesOf(before), count, changes.data());
  EXPECT_LE(bytes, changes.size());
  return {changes.begin(), changes.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

void ExpectSameBits(const Words& before, const Words& now, const std::string& what) {
  const std::vector<std::byte> changes = Changes(before, now);
  Words changed = before;
  ASSERT_TRUE(ApplyDelta(changes.data(), static_cast<int64_t>(now.size()), BytesOf(changed))) << what;
  EXPECT_EQ(changed, now) << what;
}

double Share(const Words& before, const Words& now) {
  return static_cast<double>(Changes(before, now).size()) / static_cast<double>(4 * now.size());
}

TEST(ChangeCodec, MakesOfAnyBitPatternAnyOther) {
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

// All widths, with every number of further bits in few or many codes of a block.
TEST(ChangeCodec, GivesBackChangesOfAnyTwoSizes) {
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

TEST(ChangeCodec, TakesSlicesOfAnyLength) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock}) {
    ExpectSameBits(Weights(count), Updated(Weights(count), 1e-3F), std::to_string(count));
  }
}

TEST(ChangeCodec, NeedsNoMoreThanItsCapacityForNoise) {
  EXPECT_LE(Share(RandomWords(), Updated(RandomWords(), 1e30F)), 1.02);
}

// What docs and headers say of it.
TEST(ChangeCodec, LeavesTwoThirdsOfAnUpdateAndNothingOfNone) {
  constexpr int64_t kMany = 64 * kBlock;
  const Words weights = Weights(kMany);
  EXPECT_LT(Share(weights, Updated(weights, 3e-4F)), 0.71);
  EXPECT_LT(Share(weights, Updated(weights, 3e-6F)), 0.5);
  EXPECT_LT(Share(weights, weights), 0.01);
}

TEST(ChangeCodec, RefusesAnyOtherOlderState) {
  const Words before = Weights();
  const std::vector<std::byte> changes = Changes(before, Updated(before, 1e-3F));
  const auto is_refused = [&](Words other) { return !ApplyDelta(changes.data(), kCount, BytesOf(other)); };
  EXPECT_FALSE(is_refused(before));
  Words one_bit = before;
  one_bit[kBlock + 3] ^= 1;
  EXPECT_TRUE(is_refused(one_bit));
  const auto each = [&](const std::function<float(float)>& change) {
    Words others = before;
    for (uint32_t& word : others) word = std::bit_cast<uint32_t>(change(std::bit_cast<float>(word)));
    return others;
  };
  EXPECT_TRUE(is_refused(each([](float weight) { return weight / 2; })));
  EXPECT_TRUE(is_refused(each([](float weight) { return 4 * weight; })));
  EXPECT_TRUE(is_refused(each([](float weight) { return -weight; })));
  EXPECT_TRUE(is_refused(each([](float) { return 1.0F; })));
  Words two_signs = before;
  two_signs[1] ^= 0x80000000U;
  two_signs[2] ^= 0x80000000U;
  EXPECT_TRUE(is_refused(two_signs));
  Words swapped = before;
  std::swap(swapped[5], swapped[6]);
  EXPECT_TRUE(is_refused(swapped));
  Words blocks_swapped = before;
  std::swap_ranges(blocks_swapped.begin(), blocks_swapped.begin() + kBlock, blocks_swapped.begin() + kBlock);
  EXPECT_TRUE(is_refused(blocks_swapped));
}

TEST(ChangeCodec, RefusesZerosForOnes) {
  const Words ones(kCount, std::bit_cast<uint32_t>(1.0F));
  const std::vector<std::byte> changes = Changes(ones, Updated(ones, 1e-3F));
  Words zeros(kCount, 0);
  EXPECT_FALSE(ApplyDelta(changes.data(), kCount, BytesOf(zeros)));
}

TEST(ChangeCodec, RefusesWhatIsNoSliceOfSoMany) {
  const Words before = Weights();
  const std::vector<std::byte> good = Changes(before, Updated(before, 1e-3F));
  const auto is_refused = [&](const std::vector<std::byte>& bytes, int64_t count) {
    Words room = before;
    room.resize(2 * before.size());
    return !ApplyDelta(bytes.data(), count, BytesOf(room));
  };
  EXPECT_TRUE(is_refused(good, kCount - 1));
  EXPECT_TRUE(is_refused(good, kCount + 1));
  EXPECT_TRUE(is_refused(good, kCount - kBlock));
  for (const uint32_t bytes :
       {0U, 3U, 7U, 8U, 10U, 100U, static_cast<uint32_t>(good.size() - 1), 0xFFFFFFFFU}) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data(), &bytes, sizeof(bytes));
    EXPECT_TRUE(is_refused(bad, kCount)) << bytes;
  }
  const auto with_byte = [&](size_t place, uint8_t byte) {
    std::vector<std::byte> bad = good;
    bad[place] = std::byte{byte};
    return bad;
  };
  constexpr size_t kWidth = 8;
  EXPECT_TRUE(is_refused(with_byte(kWidth, 33), kCount));
  EXPECT_TRUE(is_refused(with_byte(kWidth, 255), kCount));
  EXPECT_TRUE(is_refused(with_byte(kWidth + 2, 5), kCount));
}

}  // namespace
}  // namespace weft
