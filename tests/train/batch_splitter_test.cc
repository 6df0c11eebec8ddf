// Tokens and documents of a rank's part of a microbatch.
#include "src/train/data/batch_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Values(const Tensor& tensor) {
  return {tensor.As<int32_t>(), tensor.As<int32_t>() + tensor.elements()};
}

// Inputs count from 0; each target is its input plus 1.
Microbatch Counting(int64_t sequences, int64_t seq_len) {
  Microbatch batch{Tensor::Empty(DType::kI32, {sequences, seq_len}),
                   Tensor::Empty(DType::kI32, {sequences, seq_len})};
  for (int32_t i = 0; i < sequences * seq_len; ++i) {
    batch.inputs.As<int32_t>()[i] = i;
    batch.targets.As<int32_t>()[i] = i + 1;
  }
  return batch;
}

RankBatch PartOfBatch(const Microbatch& batch, std::optional<int64_t> separator, const SequenceSplit& split,
                      int rank) {
  const auto splitter = BatchSplitter::Create(batch.inputs.dim(1), separator, split, rank);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  const auto part = splitter->Split(batch);
  EXPECT_TRUE(part.ok()) << part.status();
  return *part;
}

TEST(DocumentLengths, EndAfterSeparatorsAndAtTheEndOfTheirWindow) {
  EXPECT_THAT(DocumentLengths({5, 0, 5, 5, 0, 5, 5, 5}, 8, 0), ElementsAre(2, 3, 3));
  EXPECT_THAT(DocumentLengths({5, 5, 5, 0, 5, 5, 5, 5}, 4, 0), ElementsAre(4, 4));
  EXPECT_THAT(DocumentLengths({0, 0, 5}, 3, 0), ElementsAre(1, 1, 1));
  EXPECT_THAT(DocumentLengths({5, 5}, 2, 0), ElementsAre(2));
  EXPECT_THAT(DocumentLengths({}, 2, 0), IsEmpty());
}

TEST(BatchSplitter, ReturnsWholeSequencesUnchanged) {
  const Microbatch batch = Counting(2, 4);
  const RankBatch part = PartOfBatch(batch, std::nullopt, {}, 0);
  EXPECT_EQ(part.inputs.view().data, batch.inputs.view().data);
  EXPECT_EQ(part.targets.view().data, batch.targets.view().data);
  EXPECT_EQ(part.sequence, nullptr);
}

TEST(BatchSplitter, GivesEachRankItsTokensOfEverySequence) {
  const Microbatch batch = Counting(2, 5);
  const SequenceSplit head_tail{.outer = 2, .order = SequenceOrder::kHeadTail};
  const RankBatch first = PartOfBatch(batch, std::nullopt, head_tail, 0);
  EXPECT_EQ(first.inputs.shape(), Shape({2, 3}));
  EXPECT_THAT(Values(first.inputs), ElementsAre(0, 1, 4, 5, 6, 9));
  EXPECT_THAT(Values(first.targets), ElementsAre(1, 2, 5, 6, 7, 10));
  EXPECT_THAT(first.sequence->runs(), ElementsAre(TokenRun{0, 0, 2}, TokenRun{0, 4, 1}));
  const RankBatch second = PartOfBatch(batch, std::nullopt, head_tail, 1);
  EXPECT_THAT(Values(second.inputs), ElementsAre(2, 3, 7, 8));
  EXPECT_THAT(second.sequence->runs(), ElementsAre(TokenRun{0, 2, 2}));
  EXPECT_EQ(second.sequence->ranks(), 2);
}

TEST(BatchSplitter, PacksTheDocumentsOfAllSequences) {
  const Microbatch batch = Counting(2, 4);
  const RankBatch part = PartOfBatch(batch, /*separator=*/2, {}, 0);
  EXPECT_EQ(part.inputs.shape(), Shape({1, 8}));
  EXPECT_EQ(part.targets.shape(), Shape({1, 8}));
  EXPECT_EQ(Values(part.inputs), Values(batch.inputs));
  EXPECT_THAT(part.sequence->runs(), ElementsAre(TokenRun{0, 0, 3}, TokenRun{1, 0, 1}, TokenRun{2, 0, 4}));
}

TEST(BatchSplitter, SplitsEveryDocumentOverOuterRanksAndThePackOverInnerOnes) {
  const Microbatch batch = Counting(2, 4);
  const RankBatch outer = PartOfBatch(batch, /*separator=*/2, {.outer = 2}, 1);
  EXPECT_THAT(Values(outer.inputs), ElementsAre(2, 6, 7));  // The second document is too short.
  EXPECT_THAT(outer.sequence->runs(), ElementsAre(TokenRun{0, 2, 1}, TokenRun{2, 2, 2}));
  const RankBatch inner = PartOfBatch(batch, /*separator=*/2, {.inner = 2}, 1);
  EXPECT_THAT(Values(inner.inputs), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(inner.sequence->runs(), ElementsAre(TokenRun{2, 0, 4}));
}

TEST(BatchSplitter, SplitsABatchWithoutSequences) {
  for (const std::optional<int64_t> separator : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    const RankBatch part = PartOfBatch(Counting(0, 5), separator, {.outer = 2}, 1);
    EXPECT_EQ(part.inputs.shape(), Shape({0, 2}));
    EXPECT_EQ(part.sequence->ranks(), 2);
  }
}

}  // namespace
}  // namespace weft
