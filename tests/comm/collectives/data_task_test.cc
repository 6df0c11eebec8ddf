#include "src/comm/collectives/data_task.h"

#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

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

// A copy task.
DataTask Copy(const std::byte* source, WireEncoding from, std::byte* target, WireEncoding to) {
  DataTask task;
  task.leaves.push_back({source, DType::kF32, from});
  task.target.data = target;
  task.target.encoding = to;
  task.count = kCount;
  task.bytes = kCount * sizeof(float);
  return task;
}

TEST(DataTask, CompressesAndDecompressesWhatItCopies) {
  std::vector<float> numbers = Numbers(0.3F);
  std::vector<std::byte> compressed(CompressedCapacity(sizeof(float), kCount));
  ASSERT_OK(
      RunTask(Copy(BytesOf(numbers), WireEncoding::kPlain, compressed.data(), WireEncoding::kCompressed)));
  EXPECT_LT(CompressedBytes(compressed.data()), kCount * sizeof(float));
  std::vector<float> back(kCount);
  ASSERT_OK(RunTask(Copy(compressed.data(), WireEncoding::kCompressed, BytesOf(back), WireEncoding::kPlain)));
  EXPECT_EQ(back, numbers);
}

TEST(DataTask, ReducesCompressedLeavesIntoACompressedTarget) {
  std::vector<float> plain = Numbers(0.5F);
  const std::vector<std::byte> first = Compressed(Numbers(2.0F));
  const std::vector<std::byte> second = Compressed(Numbers(8.0F));
  const ReduceProgram program =
      BuildReduceProgram(0, 3, [](int lo, int count) { return count == 1 ? lo : -1; });
  std::vector<std::byte> sums(CompressedCapacity(sizeof(float), kCount));
  DataTask task = Copy(BytesOf(plain), WireEncoding::kPlain, sums.data(), WireEncoding::kCompressed);
  task.program = &program;
  task.leaves.push_back({first.data(), DType::kF32, WireEncoding::kCompressed});
  task.leaves.push_back({second.data(), DType::kF32, WireEncoding::kCompressed});
  ASSERT_OK(RunTask(task));
  std::vector<float> back(kCount);
  ASSERT_TRUE(DecompressSlice(DType::kF32, sums.data(), kCount, BytesOf(back)));
  EXPECT_EQ(back, Numbers(10.5F));
}

TEST(DataTask, RejectsAMalformedCompressedSlice) {
  std::vector<std::byte> slice = Compressed(Numbers(1.0F));
  slice[0] = std::byte{1};  // Its length.
  std::vector<float> back(kCount);
  EXPECT_THAT(RunTask(Copy(slice.data(), WireEncoding::kCompressed, BytesOf(back), WireEncoding::kPlain)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no compressed slice of 700 f32")));
}

TEST(DataTask, EncodesAndAppliesDeltas) {
  std::vector<float> base = Numbers(1.0F);
  std::vector<float> now = Numbers(1.001F);
  std::vector<std::byte> delta(DeltaCapacity(kCount));
  DataTask task = Copy(BytesOf(now), WireEncoding::kPlain, delta.data(), WireEncoding::kDelta);
  task.leaves.push_back({BytesOf(base), DType::kF32});
  ASSERT_OK(RunTask(task));
  ASSERT_OK(RunTask(Copy(delta.data(), WireEncoding::kDelta, BytesOf(base), WireEncoding::kPlain)));
  EXPECT_EQ(base, now);
}

TEST(DataTask, RejectsDeltasAgainstAnotherBase) {
  std::vector<float> base = Numbers(1.0F);
  std::vector<float> now = Numbers(1.001F);
  std::vector<std::byte> delta(DeltaCapacity(kCount));
  EncodeDelta(BytesOf(now), BytesOf(base), kCount, delta.data());
  base[40] = 7;
  EXPECT_THAT(RunTask(Copy(delta.data(), WireEncoding::kDelta, BytesOf(base), WireEncoding::kPlain)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no changes of the 700 f32")));
}

}  // namespace
}  // namespace weft
