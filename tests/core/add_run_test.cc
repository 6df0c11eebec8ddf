#include "weft/core/add_run.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

std::vector<std::byte> Stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> stored(values.size() * SizeOf(dtype));
  ConvertRun(values.data(), DType::kF32, stored.data(), dtype, static_cast<int64_t>(values.size()));
  return stored;
}

std::vector<float> Ramp(size_t count, float step) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = step * static_cast<float>(i % 97) - 1.5F;
  return values;
}

TEST(AddRun, RoundsTheSumOnceForEveryPairOfDTypes) {
  for (const DType source_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType target_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const float scale : {1.0F, 0.375F}) {
        const std::vector<float> addends = Ramp(3001, 0.25F);
        const std::vector<float> before = Ramp(3001, 0.0625F);
        const std::vector<std::byte> source = Stored(addends, source_dtype);
        std::vector<std::byte> target = Stored(before, target_dtype);
        AddRun(source.data(), source_dtype, target.data(), target_dtype, 3001, scale);
        std::vector<float> expected(addends.size());
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = before[i] + addends[i] * scale;
        EXPECT_EQ(target, Stored(expected, target_dtype))
            << Name(source_dtype) << " to " << Name(target_dtype);
      }
    }
  }
}

TEST(AddRun, AddsInDoubleWhereF64TakesPart) {
  constexpr double kScale = 1.0 / 3.0;
  std::vector<double> sum(3001, 1.0);
  const std::vector<float> addends = Ramp(3001, 0.1F);
  AddRun(addends.data(), DType::kF32, sum.data(), DType::kF64, 3001, kScale);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], 1.0 + static_cast<double>(addends[i]) * kScale);
  std::vector<float> rounded(3001, 0.3F);
  AddRun(sum.data(), DType::kF64, rounded.data(), DType::kF32, 3001);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(rounded[i], static_cast<float>(double{0.3F} + sum[i]));
  const std::vector<double> before = sum;
  AddRun(before.data(), DType::kF64, sum.data(), DType::kF64, 3001);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], before[i] + before[i]);
}

TEST(AddRun, GivesTheSameBitsInOneRunAndInPieces) {
  const std::vector<float> addends = Ramp(200000, 0.1F);
  std::vector<float> whole = Ramp(200000, 0.3F);
  std::vector<float> pieces = whole;
  AddRun(addends.data(), DType::kF32, whole.data(), DType::kF32, 200000);
  for (size_t begin = 0; begin < pieces.size(); begin += 777) {
    const auto count = static_cast<int64_t>(std::min<size_t>(777, pieces.size() - begin));
    AddRun(addends.data() + begin, DType::kF32, pieces.data() + begin, DType::kF32, count);
  }
  EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace weft::testing
