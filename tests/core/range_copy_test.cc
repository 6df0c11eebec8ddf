#include "weft/core/range_copy.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/dtypes.h"
#include "tests/support/status_matchers.h"
#include "weft/core/strided_copy.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// A tensor in a random layout: permuted dims with gaps. Every element of its memory holds its own index.
class Numbered {
 public:
  Numbered(std::mt19937& random, const Shape& shape) {
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    view_ = {nullptr, DType::kI32, shape, Shape(shape.size())};
    int64_t stride = random() % 3 == 0 ? 2 : 1;
    for (size_t i = order.size(); i-- > 0;) {
      view_.strides[order[i]] = stride;
      stride *= std::max<int64_t>(shape[order[i]], 1) + static_cast<int64_t>(random() % 2);
    }
    values_.resize(static_cast<size_t>(stride) + 1);
    std::iota(values_.begin(), values_.end(), 0);
    view_.data = values_.data();
  }
  Numbered(const Numbered&) = delete;
  Numbered& operator=(const Numbered&) = delete;

  const TensorView& view() const { return view_; }
  std::vector<int32_t>& values() { return values_; }
  // Memory index of the element with this row-major number.
  size_t Place(int64_t element) const {
    int64_t place = 0;
    for (size_t dim = view_.shape.size(); dim-- > 0;) {
      place += element % view_.shape[dim] * view_.strides[dim];
      element /= view_.shape[dim];
    }
    return static_cast<size_t>(place);
  }

 private:
  std::vector<int32_t> values_;
  TensorView view_;
};

Shape RandomShape(std::mt19937& random) {
  constexpr int64_t kSizes[] = {1, 1, 2, 3, 5, 7};
  Shape shape(random() % 6);
  for (int64_t& size : shape) size = kSizes[random() % std::size(kSizes)];
  return shape;
}

struct Range {
  int64_t first;
  int64_t count;
};
Range RandomRange(std::mt19937& random, int64_t elements) {
  const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(elements + 1));
  return {first, static_cast<int64_t>(random() % static_cast<uint64_t>(elements - first + 1))};
}

TEST(RangeCopy, CopiesExactlyItsRangeInRowMajorOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = RandomShape(random);
    Numbered source(random, shape);
    Numbered target(random, shape);
    std::fill(target.values().begin(), target.values().end(), -1);
    const Range range = RandomRange(random, source.view().elements());
    std::vector<int32_t> expected = target.values();
    for (int64_t i = range.first; i < range.first + range.count; ++i) {
      expected[target.Place(i)] = source.values()[source.Place(i)];
    }
    ASSERT_OK_AND_ASSIGN(const RangeCopy copy, RangeCopy::Make(source.view(), target.view()));
    ASSERT_EQ(copy.elements(), source.view().elements());
    copy.Run(source.view().data, target.view().data, range.first, range.count);
    ASSERT_EQ(target.values(), expected) << ToString(shape) << " from " << range.first << ", " << range.count;
  }
}

TEST(RangeCopy, PacksAndUnpacksRanges) {
  std::mt19937 random(6);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = RandomShape(random);
    Numbered source(random, shape);
    Numbered target(random, shape);
    std::fill(target.values().begin(), target.values().end(), -1);
    const Range range = RandomRange(random, source.view().elements());
    std::vector<int32_t> run(static_cast<size_t>(range.count) + 1, -7);
    std::vector<int32_t> expected = target.values();

    RangeCopy::Pack(source.view()).Run(source.view().data, run.data(), range.first, range.count);
    for (int64_t i = 0; i < range.count; ++i) {
      ASSERT_EQ(run[i], source.values()[source.Place(range.first + i)]) << ToString(shape);
      expected[target.Place(range.first + i)] = run[i];
    }
    ASSERT_EQ(run.back(), -7);
    RangeCopy::Unpack(target.view()).Run(run.data(), target.view().data, range.first, range.count);
    ASSERT_EQ(target.values(), expected) << ToString(shape);
  }
}

TEST(RangeCopy, CopiesEveryDType) {
  for (const DType dtype : kDTypes) {
    std::vector<std::byte> bytes(6 * SizeOf(dtype));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i + 1);
    std::vector<std::byte> moved(bytes.size());
    const TensorView source = TensorView::Contiguous(bytes.data(), dtype, {2, 3});
    const TensorView target = TensorView::Contiguous(moved.data(), dtype, {3, 2}).Permute({1, 0});
    ASSERT_OK_AND_ASSIGN(const RangeCopy there, RangeCopy::Make(source, target));
    there.Run(source.data, target.data, 0, 4);
    there.Run(source.data, target.data, 4, 2);
    std::vector<std::byte> back(bytes.size());
    ASSERT_OK(StridedCopy(target, TensorView::Contiguous(back.data(), dtype, {2, 3})));
    EXPECT_EQ(back, bytes) << Name(dtype);
  }
}

TEST(RangeCopy, HasNoElementsByDefaultAndForEmptyShapes) {
  RangeCopy().Run(nullptr, nullptr, 0, 0);
  const TensorView empty = TensorView::Contiguous(nullptr, DType::kF32, {2, 0, 3});
  ASSERT_OK_AND_ASSIGN(const RangeCopy copy, RangeCopy::Make(empty, empty));
  EXPECT_EQ(copy.elements(), 0);
  copy.Run(nullptr, nullptr, 0, 0);
}

TEST(RangeCopy, RejectsDifferentShapesOrDTypesAndOverlappingTargets) {
  float data[4] = {};
  const TensorView view = TensorView::Contiguous(data, DType::kF32, {2, 2});
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(RangeCopy::Make(view, TensorView::Contiguous(data, DType::kF32, {4})).status(),
              invalid("[2, 2]"));
  EXPECT_THAT(RangeCopy::Make(view, TensorView::Contiguous(data, DType::kBF16, {2, 2})).status(),
              invalid("f32 to bf16"));
  EXPECT_THAT(RangeCopy::Make(view, TensorView{data, DType::kF32, {2, 2}, {0, 1}}).status(),
              invalid("stride 0"));
}

}  // namespace
}  // namespace weft
