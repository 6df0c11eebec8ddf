#include "src/comm/codec/slice_codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/comm/codec/bit_planes.h"

namespace weft {
namespace {

constexpr int64_t kBlock = kPlaneBlock;
constexpr int64_t kCount = 5 * kBlock + 17;

std::vector<uint32_t> Normals(float deviation, int64_t count = kCount) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<uint32_t> words;
  for (int64_t i = 0; i < count; ++i) words.push_back(std::bit_cast<uint32_t>(normal(random)));
  return words;
}

std::vector<uint32_t> EqualWords(uint32_t word) { return std::vector<uint32_t>(kCount, word); }

std::vector<uint32_t> RandomWords() {
  std::mt19937 random(3);
  std::vector<uint32_t> words(kCount);
  for (uint32_t& word : words) word = random();
  return words;
}

// One block for each possible exponent `second`. A few numbers of the block have that exponent, and the rest
// have the exponent `first`.
std::vector<uint32_t> PairsOfExponents(uint32_t first) {
  std::vector<uint32_t> words;
  for (uint32_t second = 0; second < 256; ++second) {
    for (uint32_t i = 0; i < kBlock; ++i) {
      const uint32_t exponent = i % 19 == 5 ? second : first;
      words.push_back((exponent << 23) | (i << 31) | (i * 0x9E37U & 0x7FFFFFU));
    }
  }
  return words;
}

// The words as numbers of a dtype. bf16 takes their upper halves.
std::vector<std::byte> AsNumbers(DType dtype, const std::vector<uint32_t>& words) {
  const size_t bytes = SizeOf(dtype);
  std::vector<std::byte> numbers(words.size() * bytes);
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t word = dtype == DType::kF32 ? words[i] : words[i] >> 16;
    std::memcpy(numbers.data() + i * bytes, &word, bytes);
  }
  return numbers;
}

// Compresses numbers. The result has exactly the compressed bytes, so that a sanitizer detects accesses
// beyond.
std::vector<std::byte> Compressed(DType dtype, const std::vector<std::byte>& numbers) {
  const auto count = static_cast<int64_t>(numbers.size() / SizeOf(dtype));
  std::vector<std::byte> compressed(CompressedCapacity(SizeOf(dtype), count));
  const size_t bytes = CompressSlice(dtype, numbers.data(), count, compressed.data());
  EXPECT_LE(bytes, compressed.size());
  EXPECT_EQ(bytes, CompressedBytes(compressed.data()));
  return {compressed.begin(), compressed.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

void ExpectSameBits(DType dtype, const std::vector<uint32_t>& words, const std::string& what) {
  const std::vector<std::byte> numbers = AsNumbers(dtype, words);
  const std::vector<std::byte> compressed = Compressed(dtype, numbers);
  std::vector<std::byte> restored(numbers.size(), std::byte{0xEE});
  ASSERT_TRUE(DecompressSlice(dtype, compressed.data(), static_cast<int64_t>(words.size()), restored.data()))
      << what;
  EXPECT_EQ(restored, numbers) << what;
}

double CompressionRatio(DType dtype, const std::vector<uint32_t>& words) {
  const std::vector<std::byte> numbers = AsNumbers(dtype, words);
  return static_cast<double>(Compressed(dtype, numbers).size()) / static_cast<double>(numbers.size());
}

class SliceCodec : public ::testing::TestWithParam<DType> {};

TEST_P(SliceCodec, RestoresEveryBitPattern) {
  ExpectSameBits(GetParam(), RandomWords(), "random bits");
  ExpectSameBits(GetParam(), Normals(1.0F), "normal");
  ExpectSameBits(GetParam(), Normals(1e-38F), "normal, many of them subnormal");
  ExpectSameBits(GetParam(), Normals(1e38F), "normal, some of them infinite");
  for (const float value : {0.0F, -0.0F, 1.0F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::denorm_min(), std::nanf("1"), -std::nanf("2")}) {
    ExpectSameBits(GetParam(), EqualWords(std::bit_cast<uint32_t>(value)), std::to_string(value));
  }
}

TEST_P(SliceCodec, RestoresExponentsInsideAndOutsideTheWindow) {
  for (const uint32_t first : {0U, 1U, 2U, 7U, 15U, 16U, 126U, 127U, 239U, 240U, 254U, 255U}) {
    ExpectSameBits(GetParam(), PairsOfExponents(first), std::to_string(first));
  }
}

TEST_P(SliceCodec, RestoresSlicesOfAnyLength) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock}) {
    ExpectSameBits(GetParam(), Normals(1.0F, count), std::to_string(count));
  }
}

TEST_P(SliceCodec, StaysWithinItsCapacityForRandomBits) {
  EXPECT_LE(CompressionRatio(GetParam(), RandomWords()), 1.02);
}

TEST_P(SliceCodec, RejectsMalformedSlicesAndWrongCounts) {
  const DType dtype = GetParam();
  const std::vector<std::byte> numbers = AsNumbers(dtype, Normals(1.0F));
  const std::vector<std::byte> good = Compressed(dtype, numbers);
  std::vector<std::byte> restored(2 * numbers.size());
  EXPECT_FALSE(DecompressSlice(dtype, good.data(), kCount - 1, restored.data()));
  EXPECT_FALSE(DecompressSlice(dtype, good.data(), kCount + 1, restored.data()));
  EXPECT_FALSE(DecompressSlice(dtype, good.data(), kCount - kBlock, restored.data()));
  const auto with_length = [&](uint32_t bytes) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data(), &bytes, sizeof(bytes));
    return bad;
  };
  for (const uint32_t bytes : {0U, 3U, 4U, 6U, 100U, static_cast<uint32_t>(good.size() - 1), 0xFFFFFFFFU}) {
    EXPECT_FALSE(DecompressSlice(dtype, with_length(bytes).data(), kCount, restored.data())) << bytes;
  }
  std::vector<std::byte> wide = good;
  wide[5] = std::byte{9};
  EXPECT_FALSE(DecompressSlice(dtype, wide.data(), kCount, restored.data()));
}

// The end of such a slice lies before its first block. Their distance must not be taken for a large unsigned
// number.
TEST_P(SliceCodec, ReadsNothingOfASliceThatIsShorterThanItsLengthField) {
  for (const uint32_t bytes : {0U, 1U, 2U, 3U}) {
    // Exactly the length field: AddressSanitizer sees a read of more.
    std::vector<std::byte> bad(sizeof(bytes));
    std::memcpy(bad.data(), &bytes, sizeof(bytes));
    std::vector<std::byte> restored(4 * static_cast<size_t>(kCount));
    for (const int64_t count : {int64_t{0}, int64_t{1}, kCount}) {
      EXPECT_FALSE(DecompressSlice(GetParam(), bad.data(), count, restored.data())) << bytes;
    }
    // Blocks behind such a length field are not restored.
    std::vector<std::byte> blocks = Compressed(GetParam(), AsNumbers(GetParam(), Normals(1.0F)));
    std::memcpy(blocks.data(), &bytes, sizeof(bytes));
    const std::vector<std::byte> before(4 * static_cast<size_t>(kCount), std::byte{0x5A});
    std::vector<std::byte> after = before;
    EXPECT_FALSE(DecompressSlice(GetParam(), blocks.data(), kCount, after.data())) << bytes;
    EXPECT_TRUE(after == before) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SliceCodec, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// The figures in the docs and in the headers.
TEST(SliceCodecRatio, SavesASixthOfNormalNumbersInF32AndThreeTenthsInBF16) {
  EXPECT_LT(CompressionRatio(DType::kF32, Normals(0.02F)), 0.86);
  EXPECT_LT(CompressionRatio(DType::kBF16, Normals(0.02F)), 0.72);
}

TEST(SliceCodecRatio, StoresLittleMoreThanTheMantissasOfZeros) {
  EXPECT_LT(CompressionRatio(DType::kF32, EqualWords(0)), 0.78);
}

}  // namespace
}  // namespace weft
