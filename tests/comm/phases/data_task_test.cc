#include "src/comm/phases/data_task.h"

#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

constexpr int64_t kCount = 700;

std::vector<float> Numbers(float scale) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < kCount; ++i) numbers.push_back(scale * static_cast<float>(i % 37 - 18));
  return numbers;
}

std::byte* BytesOf(std::vector<float>& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); }

std::vector<std::byte> Compressed(std::vector<float> numbers) {
  std::vector<std::byte> compressed(CompressedCapacity(sizeof(float), kCount));
  CompressSlice(DType::kF32, BytesOf(numbers), kCount, compressed.data());
  return compressed;
}

TaskBody Compress(std::vector<float>& numbers, std::vector<std::byte>& slice) {
  return EncodeTask{DType::kF32, BytesOf(numbers), /*base=*/nullptr, slice.data(), kCount};
}
TaskBody Decode(WireEncoding encoding, const std::vector<std::byte>& slice, std::vector<float>& numbers) {
  return DecodeTask{DType::kF32, encoding, slice.data(), BytesOf(numbers), kCount};
}

TEST(DataTask, CompressesAndDecompressesASlice) {
  std::vector<float> numbers = Numbers(0.3F);
  std::vector<std::byte> compressed(CompressedCapacity(sizeof(float), kCount));
  ASSERT_OK(RunTask(Compress(numbers, compressed)));
  EXPECT_LT(CompressedBytes(compressed.data()), kCount * sizeof(float));
  std::vector<float> restored(kCount);
  ASSERT_OK(RunTask(Decode(WireEncoding::kCompressed, compressed, restored)));
  EXPECT_EQ(restored, numbers);
}

TEST(DataTask, ReducesCompressedLeavesIntoACompressedTarget) {
  std::vector<float> plain = Numbers(0.5F);
  const std::vector<std::byte> first = Compressed(Numbers(2.0F));
  const std::vector<std::byte> second = Compressed(Numbers(8.0F));
  const ReduceProgram program =
      BuildReduceProgram(0, 3, [](int lo, int count) { return count == 1 ? lo : -1; });
  std::vector<std::byte> sums(CompressedCapacity(sizeof(float), kCount));
  ReduceTarget target{sums.data(), DType::kF32};
  target.encoding = WireEncoding::kCompressed;
  ASSERT_OK(RunTask(ReduceTask{&program,
                               {{BytesOf(plain), DType::kF32},
                                {first.data(), DType::kF32, WireEncoding::kCompressed},
                                {second.data(), DType::kF32, WireEncoding::kCompressed}},
                               ReduceOp::kSum,
                               target,
                               kCount}));
  std::vector<float> restored(kCount);
  ASSERT_TRUE(DecompressSlice(DType::kF32, sums.data(), kCount, BytesOf(restored)));
  EXPECT_EQ(restored, Numbers(10.5F));
}

TEST(DataTask, RejectsAMalformedCompressedSlice) {
  std::vector<std::byte> slice = Compressed(Numbers(1.0F));
  slice[0] = std::byte{1};  // Its length.
  std::vector<float> restored(kCount);
  EXPECT_THAT(RunTask(Decode(WireEncoding::kCompressed, slice, restored)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("not a compressed slice of 700 f32")));
}

TEST(DataTask, EncodesAndAppliesDeltas) {
  std::vector<float> base = Numbers(1.0F);
  std::vector<float> now = Numbers(1.001F);
  std::vector<std::byte> delta(DeltaCapacity(kCount));
  ASSERT_OK(RunTask(EncodeTask{DType::kF32, BytesOf(now), BytesOf(base), delta.data(), kCount}));
  ASSERT_OK(RunTask(Decode(WireEncoding::kDelta, delta, base)));
  EXPECT_EQ(base, now);
}

TEST(DataTask, RejectsDeltasAgainstAnotherBase) {
  std::vector<float> base = Numbers(1.0F);
  std::vector<float> now = Numbers(1.001F);
  std::vector<std::byte> delta(DeltaCapacity(kCount));
  EncodeDelta(BytesOf(now), BytesOf(base), kCount, delta.data());
  base[40] = 7;
  EXPECT_THAT(RunTask(Decode(WireEncoding::kDelta, delta, base)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("does not match the base of 700 f32")));
}

}  // namespace
}  // namespace weft
