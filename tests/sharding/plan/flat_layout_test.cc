#include "weft/sharding/flat_layout.h"

#include <map>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/piece_elements.h"
#include "tests/sharding/support/random_layout.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename Body>
void ForRandomLayouts(Body body) {
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    body(MakeRandomGroup(seed).Layout());
    if (::testing::Test::HasFailure()) return;
  }
}

int64_t Elements(const FlatLayout& layout, int parameter) {
  return ElementCount(layout.parameters()[static_cast<size_t>(parameter)].shape);
}

TEST(FlatLayout, GivesEveryElementToExactlyOneRank) {
  ForRandomLayouts([](const FlatLayout& layout) {
    std::set<std::pair<int, int64_t>> owned;
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      for (const ShardPiece& piece : layout.Pieces(rank)) {
        for (const int64_t element : ElementsOf(piece)) {
          EXPECT_LT(element, Elements(layout, piece.parameter));
          EXPECT_TRUE(owned.emplace(piece.parameter, element).second) << "element " << element << " twice";
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(owned.size()), layout.parameter_elements());
  });
}

// Number of uses of each element of a buffer.
class UseCounts {
 public:
  explicit UseCounts(int64_t elements) : counts_(static_cast<size_t>(elements)) {}
  void Add(int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) ++counts_.at(static_cast<size_t>(begin + i));
  }
  const std::vector<int>& counts() const { return counts_; }

 private:
  std::vector<int> counts_;
};

bool IsTrainable(const FlatLayout& layout, int parameter) {
  return layout.parameters()[static_cast<size_t>(parameter)].trainable;
}

TEST(FlatLayout, KeepsPiecesOfAShardDisjoint) {
  ForRandomLayouts([](const FlatLayout& layout) {
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      UseCounts uses(layout.shard_elements(rank));
      for (const ShardPiece& piece : layout.Pieces(rank)) uses.Add(piece.shard_offset, piece.elements());
      EXPECT_THAT(uses.counts(), ::testing::Each(::testing::Le(1)));
    }
  });
}

TEST(FlatLayout, CoversTheReducedPartWithTrainablePiecesAndGaps) {
  ForRandomLayouts([](const FlatLayout& layout) {
    int64_t offset = 0;
    int64_t trainable = 0;
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      EXPECT_EQ(layout.reduced_offset(rank), offset);
      offset += layout.reduced_elements(rank);
      UseCounts uses(layout.reduced_elements(rank));
      for (const ShardPiece& piece : layout.Pieces(rank)) {
        if (!IsTrainable(layout, piece.parameter)) {
          EXPECT_GE(piece.shard_offset, layout.reduced_elements(rank));
          continue;
        }
        uses.Add(piece.shard_offset, piece.elements());
        trainable += piece.elements();
      }
      for (const FlatRange& gap : layout.ReducedGaps(rank)) uses.Add(gap.begin, gap.count);
      EXPECT_THAT(uses.counts(), ::testing::Each(1));
    }
    EXPECT_EQ(layout.reduced_elements(), offset);
    EXPECT_EQ(layout.trainable_elements(), trainable);
  });
}

TEST(FlatLayout, CoversTheGradientImageWithTrainableParametersAndGaps) {
  ForRandomLayouts([](const FlatLayout& layout) {
    UseCounts uses(layout.gradient_image_elements());
    for (int p = 0; p < static_cast<int>(layout.parameters().size()); ++p) {
      if (IsTrainable(layout, p)) {
        uses.Add(layout.image_offset(p), Elements(layout, p));
      } else {
        EXPECT_GE(layout.image_offset(p), layout.gradient_image_elements());
      }
    }
    for (const FlatRange& gap : layout.GradientImageGaps()) uses.Add(gap.begin, gap.count);
    EXPECT_THAT(uses.counts(), ::testing::Each(1));
  });
}

TEST(FlatLayout, ReducesWholeShardsIfNothingIsFrozen) {
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    RandomGroup group = MakeRandomGroup(seed);
    for (FlatParameter& parameter : group.parameters) parameter.trainable = true;
    const FlatLayout layout = group.Layout();
    EXPECT_FALSE(layout.frozen());
    EXPECT_EQ(layout.gradient_image_elements(), layout.image_elements());
    EXPECT_EQ(layout.reduced_elements(), layout.gathered_elements());
    EXPECT_EQ(layout.trainable_elements(), layout.parameter_elements());
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      EXPECT_EQ(layout.reduced_elements(rank), layout.shard_elements(rank));
    }
  }
}

TEST(FlatLayout, ReducesNothingIfAllParametersAreFrozen) {
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    RandomGroup group = MakeRandomGroup(seed);
    for (FlatParameter& parameter : group.parameters) parameter.trainable = false;
    const FlatLayout layout = group.Layout();
    EXPECT_EQ(layout.frozen(), !group.parameters.empty());
    EXPECT_EQ(layout.gradient_image_elements(), 0);
    EXPECT_EQ(layout.reduced_elements(), 0);
    EXPECT_THAT(layout.BucketSlices(0), IsEmpty());
  }
}

TEST(FlatLayout, PutsFrozenParametersLast) {
  const FlatLayout layout =
      *FlatLayout::Make(FlatKind::kContiguous, {{{40}, 0, 0, false}, {{10}}, {{20}}}, 2, 16);
  EXPECT_EQ(layout.image_offset(1), 0);
  EXPECT_EQ(layout.image_offset(2), 16);
  EXPECT_EQ(layout.image_offset(0), 48);
  EXPECT_EQ(layout.shard_elements(0), 48);
  EXPECT_EQ(layout.reduced_elements(0), 48);
  EXPECT_EQ(layout.reduced_elements(1), 0);
}

TEST(FlatLayout, AlignsParametersAndShards) {
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    const RandomGroup group = MakeRandomGroup(seed);
    const FlatLayout layout = group.Layout();
    if (layout.kind() != FlatKind::kRows) {
      EXPECT_EQ(layout.shard_elements(0) % group.alignment, 0);
    }
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      EXPECT_EQ(layout.image_offset(static_cast<int>(i)) % group.alignment, 0);
    }
    if (layout.kind() == FlatKind::kContiguous) {
      EXPECT_LT(layout.image_elements() - layout.parameter_elements(),
                group.alignment * (layout.shard_size() + static_cast<int64_t>(group.parameters.size())));
    }
  }
}

TEST(FlatLayout, ConcatenatesTheShardsToTheGatheredBuffer) {
  ForRandomLayouts([](const FlatLayout& layout) {
    int64_t end = 0;
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      EXPECT_EQ(layout.gathered_offset(rank), end);
      end += layout.shard_elements(rank);
    }
    EXPECT_EQ(layout.gathered_elements(), end);
    EXPECT_EQ(layout.gathered_offset(layout.shard_size()), end);
  });
}

TEST(FlatLayout, ConcatenatesTheShardsToTheImageIfEndToEnd) {
  ForRandomLayouts([](const FlatLayout& layout) {
    const bool is_alone = layout.kind() == FlatKind::kRows && layout.shard_size() == 1;
    EXPECT_EQ(layout.is_end_to_end(), layout.kind() == FlatKind::kContiguous || is_alone);
    if (!layout.is_end_to_end()) return;
    EXPECT_EQ(layout.image_elements(), layout.gathered_elements());
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      for (const ShardPiece& piece : layout.Pieces(rank)) {
        EXPECT_EQ(piece.runs, 1);
        EXPECT_EQ(layout.gathered_offset(rank) + piece.shard_offset,
                  layout.image_offset(piece.parameter) + piece.start);
      }
    }
  });
}

TEST(FlatLayout, HoldsEachBucketInOneSliceOfEveryShard) {
  ForRandomLayouts([](const FlatLayout& layout) {
    std::set<int> buckets;
    for (const FlatParameter& parameter : layout.parameters()) {
      if (parameter.trainable) buckets.insert(parameter.replicate_bucket);
    }
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      std::map<int, FlatRange> slices;
      int64_t end = 0;
      for (const BucketSlice& slice : layout.BucketSlices(rank)) {
        slices[slice.bucket] = slice.range;
        if (slice.range.count == 0) continue;
        EXPECT_EQ(slice.range.begin, end);
        end = slice.range.end();
      }
      EXPECT_EQ(slices.size(), buckets.size());
      EXPECT_EQ(end, layout.reduced_elements(rank));
      for (const ShardPiece& piece : layout.Pieces(rank)) {
        if (!IsTrainable(layout, piece.parameter)) continue;
        const int bucket = layout.parameters()[static_cast<size_t>(piece.parameter)].replicate_bucket;
        EXPECT_GE(piece.shard_offset, slices[bucket].begin);
        EXPECT_LE(piece.shard_offset + piece.elements(), slices[bucket].end());
      }
    }
  });
}

TEST(FlatLayout, CutsTheChosenDimIntoEqualChunksWithShortLastOnes) {
  const FlatLayout layout = *FlatLayout::Make(FlatKind::kPerParameter, {{{2, 5, 3}, 1, 0}}, 4, 16);
  const auto piece = [&layout](int rank) { return layout.Pieces(rank).at(0); };
  EXPECT_EQ(layout.shard_elements(3), 16);  // 2 x 2 x 3, padded to the alignment.
  EXPECT_THAT(ElementsOf(piece(0)), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 15, 16, 17, 18, 19, 20));
  EXPECT_THAT(ElementsOf(piece(2)), ::testing::ElementsAre(12, 13, 14, 27, 28, 29));
  EXPECT_THAT(layout.Pieces(3), IsEmpty());
}

TEST(FlatLayout, IgnoresParameterBoundariesIfContiguous) {
  const FlatLayout layout = *FlatLayout::Make(FlatKind::kContiguous, {{{40}}, {{10}}}, 2, 16);
  EXPECT_EQ(layout.image_offset(1), 48);
  EXPECT_EQ(layout.shard_elements(1), 32);
  EXPECT_THAT(ElementsOf(layout.Pieces(1).at(0)), ::testing::ElementsAre(32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_EQ(layout.Pieces(1).at(1).shard_offset, 16);
}

TEST(FlatLayout, CutsRowsAsTorchChunkDoes) {
  const auto layout = *FlatLayout::Make(FlatKind::kRows, {{{5, 3}}, {{2, 2}}, {{}}, {{0, 4}}}, 4, 16);
  const auto rows = [&layout](int rank, int parameter) {
    std::vector<int64_t> elements;
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      if (piece.parameter == parameter) elements = ElementsOf(piece);
    }
    return elements;
  };
  EXPECT_THAT(rows(0, 0), ::testing::ElementsAre(0, 1, 2, 3, 4, 5));  // Two of five rows.
  EXPECT_THAT(rows(2, 0), ::testing::ElementsAre(12, 13, 14));
  EXPECT_THAT(rows(3, 0), IsEmpty());
  EXPECT_THAT(rows(1, 1), ::testing::ElementsAre(2, 3));  // One of two rows.
  EXPECT_THAT(rows(2, 1), IsEmpty());
  EXPECT_THAT(rows(0, 2), ::testing::ElementsAre(0));  // A scalar.
  EXPECT_EQ(layout.shard_elements(0), 9);
  EXPECT_EQ(layout.shard_elements(1), 8);
  EXPECT_EQ(layout.shard_elements(2), 3);
  EXPECT_EQ(layout.shard_elements(3), 0);
}

// Elements of the image, by place in a shard.
std::vector<int64_t> PlacesOf(const std::vector<FlatRange>& ranges) {
  std::vector<int64_t> places;
  for (const FlatRange& range : ranges) {
    for (int64_t i = range.begin; i < range.end(); ++i) places.push_back(i);
  }
  return places;
}

TEST(FlatLayout, PartitionsTheImageWhereItIsZeroCopy) {
  ForRandomLayouts([](const FlatLayout& layout) {
    if (!IsZeroCopy(layout.kind())) return;
    UseCounts image(layout.image_elements());
    UseCounts gradients(layout.gradient_image_elements());
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      for (const FlatRange& range : layout.ImageRanges(rank)) image.Add(range.begin, range.count);
      for (const FlatRange& range : layout.ReducedRanges(rank)) gradients.Add(range.begin, range.count);
    }
    EXPECT_THAT(image.counts(), ::testing::Each(::testing::Le(1)));
    EXPECT_THAT(gradients.counts(), ::testing::Each(::testing::Le(1)));
    for (int p = 0; p < static_cast<int>(layout.parameters().size()); ++p) {
      for (int64_t i = 0; i < Elements(layout, p); ++i) {
        EXPECT_EQ(image.counts()[static_cast<size_t>(layout.image_offset(p) + i)], 1);
        if (!IsTrainable(layout, p)) continue;
        EXPECT_EQ(gradients.counts()[static_cast<size_t>(layout.image_offset(p) + i)], 1);
      }
    }
  });
}

TEST(FlatLayout, ListsTheRangesOfTheImageInTheOrderOfTheShard) {
  ForRandomLayouts([](const FlatLayout& layout) {
    if (!IsZeroCopy(layout.kind())) return;
    for (int rank = 0; rank < layout.shard_size(); ++rank) {
      const std::vector<int64_t> places = PlacesOf(layout.ImageRanges(rank));
      const std::vector<int64_t> reduced = PlacesOf(layout.ReducedRanges(rank));
      ASSERT_EQ(static_cast<int64_t>(places.size()), layout.shard_elements(rank));
      ASSERT_EQ(static_cast<int64_t>(reduced.size()), layout.reduced_elements(rank));
      for (const ShardPiece& piece : layout.Pieces(rank)) {
        for (int64_t i = 0; i < piece.elements(); ++i) {
          const auto place = static_cast<size_t>(piece.shard_offset + i);
          const int64_t element = layout.image_offset(piece.parameter) + piece.start + i;
          EXPECT_EQ(places[place], element);
          if (!IsTrainable(layout, piece.parameter)) continue;
          EXPECT_EQ(reduced[place], element);
        }
      }
    }
  });
}

TEST(FlatLayout, IsEmptyWithoutParameters) {
  for (const FlatKind kind : {FlatKind::kContiguous, FlatKind::kRows, FlatKind::kPerParameter}) {
    const FlatLayout layout = *FlatLayout::Make(kind, {}, 3, 16);
    EXPECT_EQ(layout.gathered_elements(), 0);
    EXPECT_THAT(layout.Pieces(2), IsEmpty());
    EXPECT_THAT(layout.BucketSlices(2), IsEmpty());
  }
}

TEST(FlatLayout, RefusesInvalidParameters) {
  const auto make = [](FlatParameter parameter, int shard_size) {
    return FlatLayout::Make(FlatKind::kPerParameter, {std::move(parameter)}, shard_size, 16);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(make({{4, 4}, 2, 0}, 2), StatusIs(invalid, HasSubstr("no dim 2")));
  EXPECT_THAT(make({{4, 4}, -3, 0}, 2), StatusIs(invalid, HasSubstr("no dim -3")));
  EXPECT_THAT(make({{4, -4}, 0, 0}, 2), StatusIs(invalid, HasSubstr("negative")));
  EXPECT_THAT(make({{4, 4}, 0, -1}, 2), StatusIs(invalid, HasSubstr("bucket")));
  EXPECT_THAT(make({{4, 4}, 0, 0}, 0), StatusIs(invalid, HasSubstr("got 0")));
}

}  // namespace
}  // namespace weft::testing
