#include "weft/context_parallel/sequence_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<int32_t> Values(const TensorView& view) {
  const Tensor packed = Tensor::Empty(view.dtype, view.shape);
  EXPECT_OK(StridedCopy(view, packed.view()));
  return {packed.As<int32_t>(), packed.As<int32_t>() + packed.elements()};
}

// Elements 0, 1, 2, …
Tensor Counting(Shape shape) {
  Tensor tensor = Tensor::Empty(DType::kI32, std::move(shape));
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.As<int32_t>()[i] = static_cast<int32_t>(i);
  return tensor;
}

std::vector<SequenceLayout> Layouts(int64_t tokens) {
  std::vector<SequenceLayout> layouts;
  for (const int ranks : {1, 2, 3, 4}) {
    layouts.push_back(*SequenceLayout::Contiguous(tokens, ranks));
    layouts.push_back(*SequenceLayout::HeadTail(tokens, ranks));
  }
  layouts.push_back(*SequenceLayout::Create({1, tokens - 4, 3}, {.outer = 2, .inner = 2}));
  return layouts;
}

TEST(SequenceParts, CopyTheTokensOfARankInItsOrder) {
  const SequenceLayout layout = *SequenceLayout::HeadTail(8, 2);
  const Tensor whole = Counting({2, 8});
  ASSERT_OK_AND_ASSIGN(const Tensor part, ExtractPart(whole.view(), 1, layout, 0));
  EXPECT_EQ(part.shape(), Shape({2, 4}));
  EXPECT_THAT(Values(part.view()), ElementsAre(0, 1, 6, 7, 8, 9, 14, 15));
}

TEST(SequenceParts, RebuildTheWholeAlongAnyDim) {
  for (const SequenceLayout& layout : Layouts(11)) {
    for (const auto& [shape, dim] :
         {std::pair{Shape{11}, 0}, {Shape{11, 2, 3}, -3}, {Shape{2, 11, 3}, 1}, {Shape{2, 3, 11}, -1}}) {
      const Tensor whole = Counting(shape);
      const Tensor joined = Tensor::Zeros(DType::kI32, shape);
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        ASSERT_OK_AND_ASSIGN(const Tensor part, ExtractPart(whole.view(), dim, layout, rank));
        ASSERT_OK(InsertPart(part.view(), dim, layout, rank, joined.view()));
      }
      EXPECT_EQ(Values(joined.view()), Values(whole.view()));
    }
  }
}

TEST(SequenceParts, ReadAndWriteStridedTensors) {
  const SequenceLayout layout = *SequenceLayout::Contiguous(5, 2);
  const Tensor whole = Counting({5, 3});
  const TensorView turned = whole.view().Permute({1, 0});
  ASSERT_OK_AND_ASSIGN(const Tensor part, ExtractPart(turned, 1, layout, 1));
  EXPECT_THAT(Values(part.view()), ElementsAre(9, 12, 10, 13, 11, 14));
  const Tensor into = Tensor::Zeros(DType::kI32, {5, 3});
  ASSERT_OK(InsertPart(part.view(), 1, layout, 1, into.view().Permute({1, 0})));
  EXPECT_THAT(Values(into.view()), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12, 13, 14));
}

TEST(SequenceParts, NamesTheMismatch) {
  const SequenceLayout layout = *SequenceLayout::Contiguous(5, 2);
  const Tensor whole = Counting({2, 5});
  EXPECT_THAT(ExtractPart(whole.view(), 0, layout, 0),
              StatusIs(kInvalid, AllOf(HasSubstr("[2, 5] has 2 tokens along dim 0"), HasSubstr("splits 5"))));
  EXPECT_THAT(ExtractPart(whole.view(), 2, layout, 0), StatusIs(kInvalid, HasSubstr("no sequence dim 2")));
  EXPECT_THAT(ExtractPart(whole.view(), -3, layout, 0), StatusIs(kInvalid, HasSubstr("no sequence dim -3")));
  EXPECT_THAT(InsertPart(Counting({2, 3}).view(), 1, layout, 1, whole.view()),
              StatusIs(kInvalid, HasSubstr("rank 1 of the layout holds 2")));
  EXPECT_THAT(InsertPart(Counting({3, 2}).view(), 1, layout, 1, whole.view()),
              StatusIs(kInvalid, HasSubstr("shape [3, 2]")));
  EXPECT_THAT(InsertPart(Tensor::Zeros(DType::kI64, {2, 2}).view(), 1, layout, 1, whole.view()),
              StatusIs(kInvalid, HasSubstr("i64")));
}

}  // namespace
}  // namespace weft::testing
