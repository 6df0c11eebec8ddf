#include "weft/core/tensor_view.h"

#include <limits>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;

class TensorViewTest : public ::testing::Test {
 protected:
  TensorViewTest() : values_(24) { std::iota(values_.begin(), values_.end(), 0); }

  TensorView View(Shape shape) {
    return TensorView::Contiguous(values_.data(), DType::kI32, std::move(shape));
  }
  static int At(const TensorView& view, const std::vector<int64_t>& index) {
    int64_t offset = 0;
    for (size_t dim = 0; dim < index.size(); ++dim) offset += index[dim] * view.strides[dim];
    return view.As<int32_t>()[offset];
  }

  std::vector<int32_t> values_;
};

TEST_F(TensorViewTest, IsRowMajor) {
  const TensorView view = View({2, 3, 4});
  EXPECT_THAT(view.strides, ElementsAre(12, 4, 1));
  EXPECT_EQ(view.elements(), 24);
  EXPECT_EQ(view.bytes(), 96);
  EXPECT_EQ(At(view, {1, 2, 3}), 23);
  EXPECT_EQ(ToString(view.shape), "[2, 3, 4]");
}

TEST_F(TensorViewTest, AScalarHasOneElement) {
  const TensorView scalar = View({});
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_TRUE(scalar.IsContiguous());
  EXPECT_EQ(ToString(scalar.shape), "[]");
}

TEST_F(TensorViewTest, SlicesAnyDim) {
  const TensorView view = View({2, 3, 4});
  for (const int dim : {1, -2}) {
    const TensorView slice = view.Slice(dim, 1, 2);
    EXPECT_THAT(slice.shape, ElementsAre(2, 2, 4));
    EXPECT_EQ(At(slice, {1, 0, 3}), At(view, {1, 1, 3}));
    EXPECT_FALSE(slice.IsContiguous());
  }
  EXPECT_TRUE(view.Slice(0, 1, 1).IsContiguous());
  EXPECT_EQ(view.Slice(2, 4, 0).elements(), 0);
}

TEST_F(TensorViewTest, PermutesDims) {
  const TensorView view = View({2, 3, 4});
  const TensorView permuted = view.Permute({2, 0, 1});
  EXPECT_THAT(permuted.shape, ElementsAre(4, 2, 3));
  EXPECT_EQ(At(permuted, {3, 1, 2}), At(view, {1, 2, 3}));
  EXPECT_FALSE(permuted.IsContiguous());
}

TEST_F(TensorViewTest, DimsOfSizeOneDoNotBreakContiguity) {
  TensorView view = View({3, 1, 8});
  view.strides[1] = 1000;
  EXPECT_TRUE(view.IsContiguous());
  EXPECT_THAT(view.Reshape({4, 6}).strides, ElementsAre(6, 1));
}

TEST_F(TensorViewTest, CountsNoFewerElementsAndBytesThanAShapeHas) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ElementCount({kHuge, kHuge}), kMost);
  EXPECT_EQ(ElementCount({kHuge, kHuge, 0}), 0);
  EXPECT_EQ(TensorView::Contiguous(nullptr, DType::kF64, {kHuge, 1 << 22}).bytes(), kMost);
  EXPECT_EQ(TensorView::Contiguous(nullptr, DType::kF64, {kHuge, 1 << 19}).bytes(), uint64_t{1} << 62);
}

using TensorViewDeathTest = TensorViewTest;

TEST_F(TensorViewDeathTest, AbortsForInvalidDimsRangesAndDTypes) {
  const TensorView view = View({2, 12});
  EXPECT_DEATH(view.As<float>(), "another dtype");
  EXPECT_DEATH(view.Slice(2, 0, 1), "does not have");
  EXPECT_DEATH(view.Slice(-3, 0, 1), "does not have");
  EXPECT_DEATH(view.Slice(0, 1, 2), "outside its dim");
  EXPECT_DEATH(view.Slice(0, -1, 1), "outside its dim");
  EXPECT_DEATH(view.Permute({0, 0}), "not a permutation");
  EXPECT_DEATH(view.Permute({0, 2}), "not a permutation");
  EXPECT_DEATH(view.Permute({0}), "another number of dims");
  EXPECT_DEATH(view.Reshape({5, 5}), "another element count");
  EXPECT_DEATH(view.Permute({1, 0}).Reshape({24}), "not contiguous");
}

}  // namespace
}  // namespace weft
