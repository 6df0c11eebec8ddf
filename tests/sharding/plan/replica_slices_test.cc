#include "sharding/plan/replica_slices.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/piece_elements.h"
#include "weft/core/status.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

ProcessGroup Replicas(int size, int rank) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {"replicate", ranks, rank};
}

// The slices of each replica.
std::vector<std::vector<ReplicaSlice>> SlicesByReplica(const FlatLayout& layout, int shard_rank,
                                                       int replicas) {
  std::vector<std::vector<ReplicaSlice>> slices;
  for (int rank = 0; rank < replicas; ++rank) {
    slices.push_back(DividedSlices(layout, shard_rank, DType::kF32, {Replicas(replicas, rank)}));
  }
  return slices;
}

TEST(ReplicaSlices, CoverEveryBucketOnceInPartsCutAtCacheLines) {
  for (const int64_t elements : {0, 1, 15, 16, 17, 64, 97, 1000, 4099}) {
    const FlatLayout layout = *FlatLayout::Make(FlatKind::kContiguous, {{{elements}}}, 1, 16);
    for (const int replicas : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(absl::StrCat(elements, " elements, ", replicas, " replicas"));
      int64_t next = 0;
      for (const auto& slices : SlicesByReplica(layout, 0, replicas)) {
        const ReplicaSlice& slice = slices.at(0);
        EXPECT_EQ(slice.own.begin, next);
        EXPECT_TRUE(slice.own.begin % 16 == 0 || slice.own.count == 0);
        EXPECT_LE(slice.own.count, slice.range.count / replicas + 16);
        EXPECT_EQ(UpdatedElements(slices), slice.own.count);
        next += slice.own.count;
      }
      EXPECT_EQ(next, layout.reduced_elements());
    }
  }
}

TEST(ReplicaSlices, AreWholeIfEveryReplicaUpdatesEverything) {
  const FlatLayout layout = *FlatLayout::Make(FlatKind::kContiguous, {{{40}}, {{24}}}, 2, 16);
  for (const int rank : {0, 1}) {
    const std::vector<ReplicaSlice> slices = WholeSlices(layout, rank);
    ASSERT_EQ(slices.size(), 1);
    EXPECT_EQ(slices[0].own.count, layout.reduced_elements(rank));
    EXPECT_EQ(slices[0].PartOf(3).count, layout.reduced_elements(rank));
  }
}

TEST(CutPiece, KeepsEveryElementInPlaceForEveryRange) {
  const ShardPiece piece = {3, 20, 7, 5, 4, 11};  // Five runs of four, from offset 20 of the shard.
  const std::vector<int64_t> all = ElementsOf(piece);
  for (int64_t begin = 16; begin <= 44; ++begin) {
    for (int64_t end = begin; end <= 44; ++end) {
      const std::vector<ShardPiece> cut = CutPiece(piece, {begin, end - begin});
      EXPECT_LE(cut.size(), 3);
      int64_t place = std::max<int64_t>(begin, 20);
      for (const ShardPiece& part : cut) {
        EXPECT_EQ(part.parameter, 3);
        EXPECT_EQ(part.shard_offset, place);
        const auto first = all.begin() + (place - 20);
        EXPECT_EQ(ElementsOf(part), std::vector<int64_t>(first, first + part.elements()));
        place += part.elements();
      }
      EXPECT_EQ(place, std::clamp<int64_t>(end, std::max<int64_t>(begin, 20), std::max<int64_t>(begin, 40)));
    }
  }
}

TEST(CutPiece, KeepsWholeRunsTogether) {
  const std::vector<ShardPiece> cut = CutPiece({0, 0, 0, 4, 10, 30}, {5, 30});
  EXPECT_THAT(cut, ElementsAre(Field(&ShardPiece::runs, 1), Field(&ShardPiece::runs, 2),
                               Field(&ShardPiece::run_length, 5)));
}

}  // namespace
}  // namespace weft::testing
