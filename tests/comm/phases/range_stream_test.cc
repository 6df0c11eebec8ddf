// Strided tensors, packed and unpacked in slices.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/phases/operation_fixture.h"
#include "weft/core/range_copy.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kColumns = 10;
constexpr float kGap = -1;

// The first columns of a matrix that has three more.
class StridedTarget {
 public:
  explicit StridedTarget(int64_t elements)
      : rows_(elements / kColumns), matrix_(static_cast<size_t>(rows_ * kWidth), kGap) {}

  std::byte* base() { return reinterpret_cast<std::byte*>(matrix_.data()); }
  RangeCopy Unpack() {
    return RangeCopy::Unpack(
        TensorView::Contiguous(base(), DType::kF32, {rows_, kWidth}).Slice(1, 0, kColumns));
  }
  // Elements of the columns, and all others.
  std::vector<float> columns() const { return Elements(0, kColumns); }
  std::vector<float> gaps() const { return Elements(kColumns, kWidth); }

 private:
  static constexpr int64_t kWidth = kColumns + 3;

  std::vector<float> Elements(int64_t begin, int64_t end) const {
    std::vector<float> elements;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = begin; column < end; ++column)
        elements.push_back(matrix_[static_cast<size_t>(row * kWidth + column)]);
    }
    return elements;
  }

  int64_t rows_;
  std::vector<float> matrix_;
};

TEST(RangeStream, UnpacksRunsOfSlicesOnAFastLink) {
  WithOperation([](const OperationFixture& operation) {
    const int64_t elements = 16 * kSliceElements;
    std::vector<float> packed = Numbers(elements, 1);
    StridedTarget target(elements);
    RangeStream slow(target.Unpack(), kSliceElements, MemoryOf(packed), target.base());
    EXPECT_THAT(Finish(operation, slow, 5), Each(1));
    EXPECT_EQ(slow.done(), 5);

    operation.MakeLinkFast();
    EXPECT_THAT(Finish(operation, slow, 12), ElementsAre(5, 2));  // Half of the longest run, and the rest.
    EXPECT_THAT(Finish(operation, slow, slow.slicing().slices()), ElementsAre(4));
    EXPECT_TRUE(slow.finished());
    EXPECT_EQ(target.columns(), packed);
    EXPECT_THAT(target.gaps(), Each(kGap));
    return absl::OkStatus();
  });
}

// A run ends with the ring, and has at most a quarter of it: the link fills the other slots meanwhile.
TEST(RangeStream, UnpacksRunsOfARing) {
  WithOperation([](const OperationFixture& operation) {
    operation.MakeLinkFast();
    const auto unpack = [&](int64_t ring_slices) {
      const int64_t elements = 2 * ring_slices * kSliceElements;
      std::vector<float> ring = Numbers(ring_slices * kSliceElements, 1);
      StridedTarget target(elements);
      RangeStream stream(target.Unpack(), kSliceElements, MemoryOf(ring, ring_slices), target.base());
      std::vector<int64_t> slices = Finish(operation, stream, stream.slicing().slices());
      std::vector<float> twice = ring;
      twice.insert(twice.end(), ring.begin(), ring.end());
      EXPECT_EQ(target.columns(), twice);
      return slices;
    };
    EXPECT_THAT(unpack(22), ElementsAre(5, 5, 5, 5, 2, 5, 5, 5, 5, 2));
    EXPECT_THAT(unpack(10), ElementsAre(2, 2, 2, 2, 2, 2, 2, 2, 2, 2));
    EXPECT_THAT(unpack(2), ElementsAre(1, 1, 1, 1));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
