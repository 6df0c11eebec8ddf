#include "weft/core/strided_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/dtypes.h"
#include "tests/support/status_matchers.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::StatusIs;

bool Convertible(DType source, DType target) { return IsFloating(source) == IsFloating(target); }

// Oracle for one element: convert to float, or to double if f64 takes part, scale, convert to the target's
// type; or convert between integers.
void CopyElement(const std::byte* source, DType source_dtype, std::byte* target, DType target_dtype,
                 double scale) {
  if (source_dtype == target_dtype && scale == 1) {
    std::memcpy(target, source, SizeOf(source_dtype));
    return;
  }
  if (!IsFloating(source_dtype)) {
    uint64_t bits = 0;
    std::memcpy(&bits, source, SizeOf(source_dtype));
    const size_t unused = 64 - 8 * SizeOf(source_dtype);
    int64_t value = static_cast<int64_t>(bits);
    if (source_dtype != DType::kU8) value = static_cast<int64_t>(bits << unused) >> unused;  // The sign.
    std::memcpy(target, &value, SizeOf(target_dtype));  // Little-endian: the low bytes come first.
    return;
  }
  uint16_t half = 0;
  float value = 0;
  double wide = 0;
  void* read = &half;
  if (source_dtype == DType::kF32) read = &value;
  if (source_dtype == DType::kF64) read = &wide;
  std::memcpy(read, source, SizeOf(source_dtype));
  if (source_dtype == DType::kBF16) value = ToFloat(BF16{half});
  if (source_dtype == DType::kF16) value = ToFloat(F16{half});
  if (source_dtype == DType::kF64 || target_dtype == DType::kF64) {
    wide = (source_dtype == DType::kF64 ? wide : static_cast<double>(value)) * scale;
    value = static_cast<float>(wide);
  } else {
    value *= static_cast<float>(scale);
  }
  half = target_dtype == DType::kBF16 ? ToBF16(value).bits : ToF16(value).bits;
  const void* written = &half;
  if (target_dtype == DType::kF32) written = &value;
  if (target_dtype == DType::kF64) written = &wide;
  std::memcpy(target, written, SizeOf(target_dtype));
}

// Oracle for a tensor: copies element by element, by index.
void CopyByIndex(const TensorView& source, const TensorView& target, double scale) {
  std::vector<int64_t> index(source.shape.size());
  for (int64_t i = 0; i < source.elements(); ++i) {
    int64_t rest = i;
    int64_t from = 0;
    int64_t to = 0;
    for (size_t dim = source.shape.size(); dim-- > 0;) {
      from += rest % source.shape[dim] * source.strides[dim];
      to += rest % source.shape[dim] * target.strides[dim];
      rest /= source.shape[dim];
    }
    CopyElement(static_cast<const std::byte*>(source.data) + BytesOf(from, source.dtype), source.dtype,
                static_cast<std::byte*>(target.data) + BytesOf(to, target.dtype), target.dtype, scale);
  }
}

// A tensor with permuted dims and gaps, inside a larger allocation of random bytes.
class RandomLayout {
 public:
  RandomLayout(std::mt19937& random, DType dtype, const Shape& shape) {
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    view_ = {nullptr, dtype, shape, Shape(shape.size())};
    int64_t stride = random() % 3 == 0 ? 2 : 1;
    for (size_t i = order.size(); i-- > 0;) {
      view_.strides[order[i]] = stride;
      stride *= std::max<int64_t>(shape[order[i]], 1) +
                (random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 3));
    }
    bytes_.resize((static_cast<size_t>(stride) + 3) * SizeOf(dtype));
    for (auto& byte : bytes_) byte = static_cast<std::byte>(random());
    view_.data = bytes_.data() + random() % 3 * SizeOf(dtype);
  }
  RandomLayout(const RandomLayout&) = delete;
  RandomLayout& operator=(const RandomLayout&) = delete;

  const TensorView& view() const { return view_; }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

Shape RandomShape(std::mt19937& random) {
  constexpr int64_t kSizes[] = {1, 1, 2, 3, 5, 7, 8, 17};
  Shape shape(random() % 5);
  for (int64_t& size : shape) size = random() % 16 == 0 ? 0 : kSizes[random() % std::size(kSizes)];
  return shape;
}

TEST(StridedCopy, EqualsAPlainLoopOverRandomLayoutsAndDTypes) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    const DType source_dtype = kDTypes[random() % std::size(kDTypes)];
    const DType target_dtype = kDTypes[random() % std::size(kDTypes)];
    if (!Convertible(source_dtype, target_dtype)) continue;
    const Shape shape = RandomShape(random);
    RandomLayout source(random, source_dtype, shape);
    RandomLayout target(random, target_dtype, shape);
    const double scale = IsFloating(source_dtype) && random() % 2 == 0 ? 0.3 : 1.0;

    const std::vector<std::byte> before = target.bytes();
    CopyByIndex(source.view(), target.view(), scale);
    const std::vector<std::byte> expected = target.bytes();
    target.bytes() = before;
    ASSERT_OK(StridedCopy(source.view(), target.view(), scale));
    // The comparison includes gaps and surrounding bytes, which must not be written.
    ASSERT_EQ(target.bytes(), expected)
        << ToString(shape) << " " << Name(source_dtype) << " to " << Name(target_dtype);
  }
}

TEST(StridedCopy, GivesTheSameBitsOnAnyNumberOfThreads) {
  const int threads_before = ThreadCount();
  std::mt19937 random(2);
  const Shape shape = {70, 41, 97};
  RandomLayout source(random, DType::kF32, shape);
  RandomLayout target(random, DType::kBF16, shape);
  const std::vector<std::byte> before = target.bytes();
  CopyByIndex(source.view(), target.view(), 1.7F);
  const std::vector<std::byte> expected = target.bytes();
  for (const int threads : {1, 2, 3, 5}) {
    SetThreadCount(threads);
    std::copy(before.begin(), before.end(), target.bytes().begin());
    ASSERT_OK(StridedCopy(source.view(), target.view(), 1.7F));
    EXPECT_EQ(target.bytes(), expected) << threads << " threads";
  }
  SetThreadCount(threads_before);
}

TEST(StridedCopy, RepeatsABroadcastSource) {
  const std::vector<int32_t> row = {1, 2, 3};
  std::vector<int32_t> matrix(6);
  const TensorView source{const_cast<int32_t*>(row.data()), DType::kI32, {2, 3}, {0, 1}};
  ASSERT_OK(StridedCopy(source, TensorView::Contiguous(matrix.data(), DType::kI32, {2, 3})));
  EXPECT_THAT(matrix, ::testing::ElementsAre(1, 2, 3, 1, 2, 3));
}

TEST(StridedCopy, WritesNothingForEmptyShapes) {
  float untouched = 1.0F;
  for (const Shape& shape : {Shape{0}, Shape{5, 0}, Shape{0, 5}, Shape{2, 0, 3}}) {
    const TensorView view = TensorView::Contiguous(&untouched, DType::kF32, shape);
    EXPECT_OK(StridedCopy(view, view)) << ToString(shape);
  }
  EXPECT_EQ(untouched, 1.0F);
}

TEST(CopyPlan, MergesContiguousDimsIntoOneRun) {
  float source = 0;
  BF16 target{};
  const Shape shape = {4, 1, 5, 6};
  ASSERT_OK_AND_ASSIGN(const CopyPlan plan,
                       CopyPlan::Make(TensorView::Contiguous(&source, DType::kF32, shape),
                                      TensorView::Contiguous(&target, DType::kBF16, shape)));
  EXPECT_THAT(plan.outer, IsEmpty());
  EXPECT_EQ(plan.inner.count, 120);
  EXPECT_EQ(plan.inner.source_stride, 1);
  EXPECT_EQ(plan.inner.target_stride, 1);
}

TEST(CopyPlan, OrdersLoopsByTheStridesOfTheTarget) {
  float data = 0;
  // A slice of columns becomes one loop over rows around runs of columns, for every order of the dims.
  const TensorView wide = TensorView::Contiguous(&data, DType::kF32, {8, 10}).Slice(1, 2, 4);
  const TensorView narrow = TensorView::Contiguous(&data, DType::kF32, {8, 4});
  for (const bool transposed : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const CopyPlan plan, CopyPlan::Make(transposed ? wide.Permute({1, 0}) : wide,
                                                             transposed ? narrow.Permute({1, 0}) : narrow));
    ASSERT_EQ(plan.outer.size(), 1);
    EXPECT_EQ(plan.outer[0].count, 8);
    EXPECT_EQ(plan.outer[0].source_stride, 10);
    EXPECT_EQ(plan.inner.count, 4);
    EXPECT_EQ(plan.inner.source_stride, 1);
    EXPECT_EQ(plan.inner.target_stride, 1);
    EXPECT_EQ(plan.elements(), 32);
  }
}

TEST(CopyPlan, RejectsDifferentShapesIncompatibleDTypesAndOverlappingTargets) {
  float data[4] = {};
  const TensorView view = TensorView::Contiguous(data, DType::kF32, {2, 2});
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(CopyPlan::Make(view, TensorView::Contiguous(data, DType::kF32, {4})), invalid("[2, 2]"));
  EXPECT_THAT(CopyPlan::Make(view, TensorView::Contiguous(data, DType::kI32, {2, 2})), invalid("f32 to i32"));
  EXPECT_THAT(CopyPlan::Make(view, TensorView{data, DType::kF32, {2, 2}, {0, 1}}), invalid("stride 0"));
}

TEST(ConvertRun, GivesTheSameBitsAtAnyOffsetAndLength) {
  constexpr int64_t kCount = 300;
  std::mt19937 random(4);
  std::vector<float> values(kCount);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  std::vector<F16> whole(kCount);
  ConvertRun(values.data(), DType::kF32, whole.data(), DType::kF16, kCount, 0.37F);
  for (int64_t begin = 0; begin < 40; ++begin) {
    for (int64_t length = 0; length < 70; ++length) {
      std::vector<F16> part(static_cast<size_t>(length));
      ConvertRun(values.data() + begin, DType::kF32, part.data(), DType::kF16, length, 0.37F);
      for (int64_t i = 0; i < length; ++i) ASSERT_EQ(part[i].bits, whole[begin + i].bits);
    }
  }
}

TEST(ConvertRun, WidensAllValuesOfF16) {
  std::vector<F16> values(0x10000);
  for (size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<uint16_t>(i);
  std::vector<float> wide(values.size());
  ConvertRun(values.data(), DType::kF16, wide.data(), DType::kF32, std::ssize(values));
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = ToFloat(values[i]);
    ASSERT_EQ(std::isnan(wide[i]), std::isnan(expected)) << i;
    if (!std::isnan(expected)) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

// The values of f16, the midpoints between them, and the floats next to these.
TEST(ConvertRun, RoundsToF16AsToF16Does) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float below = ToFloat(F16{static_cast<uint16_t>(bits)});
    const float above = bits + 1 == 0x7c00 ? 65536.0F : ToFloat(F16{static_cast<uint16_t>(bits + 1)});
    const float middle = (below + above) / 2;
    for (const float value : {below, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, above)}) {
      values.insert(values.end(), {value, -value});
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  values.insert(values.end(),
                {infinity, -infinity, NAN, -NAN, 1e30F, 1e-30F, std::bit_cast<float>(0x7f812345U)});
  std::vector<F16> narrow(values.size());
  ConvertRun(values.data(), DType::kF32, narrow.data(), DType::kF16, std::ssize(values));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(narrow[i].bits, ToF16(values[i]).bits) << values[i];
}

TEST(ConvertRun, ScalesInPlace) {
  std::vector<float> values = {1, 2, 3, 4, 5};
  ConvertRun(values.data(), DType::kF32, values.data(), DType::kF32, 5, 2.0F);
  EXPECT_THAT(values, ::testing::ElementsAre(2, 4, 6, 8, 10));
}

TEST(ConvertRun, CopiesBitsUnchangedWithoutAConversion) {
  const uint32_t signalling_nan = 0x7f800001U;
  uint32_t moved = 0;
  ConvertRun(&signalling_nan, DType::kF32, &moved, DType::kF32, 1);
  EXPECT_EQ(moved, signalling_nan);
}

TEST(ConvertRunDeathTest, AbortsWhenIntegersAreScaled) {
  int32_t value = 1;
  EXPECT_DEATH(ConvertRun(&value, DType::kI32, &value, DType::kI32, 1, 2.0F),
               "a copy of integers has a scale other than 1");
}

}  // namespace
}  // namespace weft
