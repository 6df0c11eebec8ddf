// Which elements come from which piece: for layouts of random shapes, from any mesh to any other.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/random_layout.h"
#include "tests/support/status_matchers.h"
#include "weft/sharding/state_dict.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

ElementRuns RunsOf(const ShardPiece& piece) {
  return {piece.start, piece.runs, piece.run_length, piece.run_stride};
}

// By parameter: what each rank of a layout holds.
std::vector<std::vector<ElementRuns>> PiecesOf(const FlatLayout& layout) {
  std::vector<std::vector<ElementRuns>> pieces(layout.parameters().size());
  for (int rank = 0; rank < layout.shard_size(); ++rank) {
    for (const ShardPiece& piece : layout.Pieces(rank)) {
      pieces[static_cast<size_t>(piece.parameter)].push_back(RunsOf(piece));
    }
  }
  return pieces;
}

// The elements' own indices, as they lie in a piece.
std::vector<int64_t> Values(const ElementRuns& runs) {
  std::vector<int64_t> values;
  for (int64_t run = 0; run < runs.runs; ++run) {
    for (int64_t i = 0; i < runs.run_length; ++i) values.push_back(runs.start + run * runs.run_stride + i);
  }
  return values;
}

std::vector<int64_t> Copied(const std::vector<ElementRuns>& sources, const ElementRuns& wanted) {
  const auto copies = PlanStateCopies(sources, wanted);
  EXPECT_OK(copies.status());
  std::vector<int64_t> out(static_cast<size_t>(wanted.elements()), -1);
  int64_t next = 0;
  for (const StateCopy& copy : *copies) {
    EXPECT_EQ(copy.to, next);
    EXPECT_GT(copy.count, 0);
    next += copy.count;
    const std::vector<int64_t> source = Values(sources[static_cast<size_t>(copy.source)]);
    std::copy_n(source.begin() + copy.from, copy.count, out.begin() + copy.to);
  }
  EXPECT_EQ(next, wanted.elements());
  return out;
}

TEST(StateCopies, BringEveryElementFromAnyMeshToAnyOther) {
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
      for (const ElementRuns& piece : wanted[parameter]) EXPECT_EQ(Copied(sources, piece), Values(piece));
    }
  }
}

TEST(StateCopies, TakeElementsOfOverlappingPiecesOnce) {
  EXPECT_EQ(Copied({{2, 1, 6, 6}, {0, 1, 4, 4}, {3, 1, 2, 2}}, {0, 1, 8, 8}), Values({0, 1, 8, 8}));
  EXPECT_EQ(Copied({{0, 1, 10, 10}, {0, 1, 3, 3}}, {1, 2, 2, 5}), Values({1, 2, 2, 5}));
}

TEST(StateCopies, NameTheFirstElementThatIsMissing) {
  const std::vector<ElementRuns> sources = {{0, 1, 4, 4}, {6, 1, 2, 2}};
  EXPECT_OK(PlanStateCopies(sources, {1, 1, 3, 3}).status());
  EXPECT_THAT(PlanStateCopies(sources, {1, 1, 6, 6}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("element 4 ")));
  EXPECT_THAT(PlanStateCopies(sources, {7, 1, 2, 2}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("element 8 ")));
  EXPECT_OK(PlanStateCopies({}, {0, 0, 0, 0}).status());
}

}  // namespace
}  // namespace weft::testing
