// Plans of copies between pieces of random layouts, from any mesh to any other.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/random_layout.h"
#include "tests/support/status_matchers.h"
#include "weft/sharding/state_dict.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

ElementRuns RunsOf(const ShardPiece& piece) {
  return {piece.start, piece.runs, piece.run_length, piece.run_stride};
}

// Pieces of all ranks of a layout, by parameter.
std::vector<std::vector<ElementRuns>> PiecesOf(const FlatLayout& layout) {
  std::vector<std::vector<ElementRuns>> pieces(layout.parameters().size());
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      pieces[static_cast<size_t>(piece.parameter)].push_back(RunsOf(piece));
    }
  }
  return pieces;
}

// Row-major indices of the elements of a piece, in its order.
std::vector<int64_t> IndicesOf(const ElementRuns& runs) {
  std::vector<int64_t> values;
  for (int64_t run = 0; run < runs.runs; ++run) {
    for (int64_t i = 0; i < runs.run_length; ++i) values.push_back(runs.start + run * runs.run_stride + i);
  }
  return values;
}

// Runs the planned copies on element indices.
std::vector<int64_t> CopyIndices(const std::vector<ElementRuns>& sources, const ElementRuns& wanted) {
  const auto copies = PieceIndex(sources).Plan(wanted);
  EXPECT_OK(copies.status());
  std::vector<int64_t> out(static_cast<size_t>(wanted.elements()), -1);
  int64_t next = 0;
  for (const StateCopy& copy : *copies) {
    EXPECT_EQ(copy.to, next);
    EXPECT_GT(copy.count, 0);
    next += copy.count;
    const std::vector<int64_t> source = IndicesOf(sources[static_cast<size_t>(copy.source)]);
    std::copy_n(source.begin() + copy.from, copy.count, out.begin() + copy.to);
  }
  EXPECT_EQ(next, wanted.elements());
  return out;
}

TEST(StateCopies, CoverEveryElementFromAnyMeshToAnyOther) {
  for (uint32_t seed = 0; seed < kRandomGroups; ++seed) {
    SCOPED_TRACE(seed);
    const RandomGroup group = MakeRandomGroup(seed);
    RandomGroup other = MakeRandomGroup(seed + 1000);
    other.parameters = group.parameters;
    const auto saved = PiecesOf(group.Layout());
    const auto wanted = PiecesOf(other.Layout());
    for (size_t parameter = 0; parameter < saved.size(); ++parameter) {
      std::vector<ElementRuns> sources = saved[parameter];
      sources.insert(sources.end(), saved[parameter].begin(), saved[parameter].end());  // Two replicas.
      for (const ElementRuns& piece : wanted[parameter])
        EXPECT_EQ(CopyIndices(sources, piece), IndicesOf(piece));
    }
  }
}

TEST(StateCopies, CopyElementsOfOverlappingPiecesOnce) {
  EXPECT_EQ(CopyIndices({{2, 1, 6, 6}, {0, 1, 4, 4}, {3, 1, 2, 2}}, {0, 1, 8, 8}), IndicesOf({0, 1, 8, 8}));
  EXPECT_EQ(CopyIndices({{0, 1, 10, 10}, {0, 1, 3, 3}}, {1, 2, 2, 5}), IndicesOf({1, 2, 2, 5}));
}

TEST(StateCopies, NameTheFirstMissingElement) {
  const std::vector<ElementRuns> sources = {{0, 1, 4, 4}, {6, 1, 2, 2}};
  EXPECT_OK(PieceIndex(sources).Plan({1, 1, 3, 3}).status());
  EXPECT_THAT(PieceIndex(sources).Plan({1, 1, 6, 6}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("element 4 ")));
  EXPECT_THAT(PieceIndex(sources).Plan({7, 1, 2, 2}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("element 8 ")));
  EXPECT_OK(PieceIndex({}).Plan({0, 0, 0, 0}).status());
}

}  // namespace
}  // namespace weft::testing
