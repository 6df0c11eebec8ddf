// Checks the canonical tree against an independent definition that writes it as nested parentheses.
#include "src/comm/base/reduction_tree.h"

#include <bit>
#include <numeric>
#include <random>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

// T(lo, n) as text. Finds the split by doubling instead of bit operations.
std::string Parenthesized(int lo, int n) {
  if (n == 1) return absl::StrCat(lo);
  int left = 1;
  while (2 * left < n) left *= 2;
  return absl::StrCat("(", Parenthesized(lo, left), "+", Parenthesized(lo + left, n - left), ")");
}

// The sum that a program computes, as text. `leaf_text` has the text of each leaf.
std::string Evaluate(const ReduceProgram& program, const std::vector<std::string>& leaf_text) {
  using Code = ReduceInstruction::Code;
  std::vector<std::string> stack;
  const auto fold = [](const std::string& a, const std::string& b) {
    return absl::StrCat("(", a, "+", b, ")");
  };
  size_t highest = 0;
  for (const ReduceInstruction& step : program.instructions) {
    const auto leaf = [&](int index) { return leaf_text.at(static_cast<size_t>(index)); };
    if (step.code == Code::kLoad) stack.push_back(leaf(step.a));
    if (step.code == Code::kLoadPair) stack.push_back(fold(leaf(step.a), leaf(step.b)));
    if (step.code == Code::kFoldLeaf) stack.back() = fold(stack.back(), leaf(step.a));
    if (step.code == Code::kFoldTop) {
      const std::string right = stack.back();
      stack.pop_back();
      stack.back() = fold(stack.back(), right);
    }
    highest = std::max(highest, stack.size());
  }
  EXPECT_EQ(stack.size(), 1U);
  EXPECT_EQ(static_cast<size_t>(program.depth), highest);
  return stack.front();
}

std::vector<int> RandomNodeMap(int ranks, int nodes, std::mt19937& random) {
  std::vector<int> map(static_cast<size_t>(ranks));
  for (int& node : map) node = std::uniform_int_distribution<int>(0, nodes - 1)(random);
  return map;
}

TEST(ReductionTree, SplitsAtTheLargestPowerOfTwoBelowTheSize) {
  for (int n = 2; n <= 64; ++n) {
    const int left = LeftSize(n);
    EXPECT_EQ(left & (left - 1), 0) << n;
    EXPECT_LT(left, n);
    EXPECT_GE(2 * left, n);
  }
}

TEST(ReductionTree, ProgramsOverSingleRanksFollowTheDefinition) {
  for (int n = 1; n <= 64; ++n) {
    for (const int lo : {0, 5}) {
      std::vector<std::string> ranks(static_cast<size_t>(lo));
      for (int rank = lo; rank < lo + n; ++rank) ranks.push_back(absl::StrCat(rank));
      const ReduceProgram program =
          BuildReduceProgram(lo, n, [](int first, int count) { return count == 1 ? first : -1; });
      EXPECT_EQ(Evaluate(program, ranks), Parenthesized(lo, n));
    }
  }
}

TEST(ReductionTree, ListsTheLeavesOfBalancedTreesOnly) {
  for (int n = 1; n <= 64; ++n) {
    // Leaves are numbered from the last rank, so that the order of the leaves differs from that of their
    // numbers.
    const ReduceProgram program =
        BuildReduceProgram(0, n, [&](int lo, int count) { return count == 1 ? n - 1 - lo : -1; });
    std::vector<int> expected(std::has_single_bit(static_cast<unsigned>(n)) ? static_cast<size_t>(n) : 0);
    std::iota(expected.rbegin(), expected.rend(), 0);
    EXPECT_EQ(program.balanced_leaves, expected) << n << " ranks";
  }
}

// A leaf may be the partial sum of a remote node, so that leaves lie at different depths.
TEST(ReductionTree, APowerOfTwoOfLeavesAtUnevenDepthsIsNotBalanced) {
  const auto leaf_of = [](int lo, int n) {
    if (lo >= 8) return n == 4 ? lo / 4 : -1;  // Leaves 2 and 3.
    if (lo >= 4) return n == 4 ? 1 : -1;
    return n == 4 ? 0 : -1;
  };
  EXPECT_EQ(BuildReduceProgram(0, 16, leaf_of).balanced_leaves, (std::vector<int>{0, 1, 2, 3}));
  const auto uneven = [](int lo, int n) {
    if (lo >= 8) return n == 8 ? 3 : -1;
    if (lo >= 4) return n == 4 ? 2 : -1;
    return n == 2 ? lo / 2 : -1;
  };
  EXPECT_TRUE(BuildReduceProgram(0, 16, uneven).balanced_leaves.empty());
}

TEST(ReductionTree, MaximalSubtreesCoverEveryRankOnce) {
  std::mt19937 random(1);
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const std::vector<int> map = RandomNodeMap(ranks, 1 + ranks % 4, random);
    int next = 0;
    for (const NodeSubtree& subtree : MaximalSubtrees(map)) {
      EXPECT_EQ(subtree.lo, next);
      for (int rank = subtree.lo; rank < subtree.lo + subtree.count; ++rank) {
        EXPECT_EQ(map[static_cast<size_t>(rank)], subtree.node);
      }
      next += subtree.count;
    }
    EXPECT_EQ(next, ranks);
  }
}

// Calls body(lo, n) for every subtree of T(lo, n), including the whole tree.
void ForEachSubtree(int lo, int n, const std::function<void(int, int)>& body) {
  body(lo, n);
  if (n == 1) return;
  int left = 1;
  while (2 * left < n) left *= 2;
  ForEachSubtree(lo, left, body);
  ForEachSubtree(lo + left, n - left, body);
}

TEST(ReductionTree, NoLargerSubtreeOnOneNodeContainsAMaximalOne) {
  std::mt19937 random(2);
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const std::vector<int> map = RandomNodeMap(ranks, 1 + ranks % 3, random);
    for (const NodeSubtree& maximal : MaximalSubtrees(map)) {
      bool is_subtree = false;
      ForEachSubtree(0, ranks, [&](int lo, int n) {
        is_subtree |= lo == maximal.lo && n == maximal.count;
        const bool contains = lo <= maximal.lo && lo + n >= maximal.lo + maximal.count && n > maximal.count;
        if (!contains) return;
        const auto begin = map.begin() + lo;
        EXPECT_FALSE(std::all_of(begin, begin + n, [&](int node) { return node == maximal.node; }));
      });
      EXPECT_TRUE(is_subtree) << maximal.lo << "+" << maximal.count;
    }
  }
}

TEST(ReductionTree, PartialsOfNodesDoNotChangeTheShapeOfTheTree) {
  std::mt19937 random(3);
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const std::vector<NodeSubtree> subtrees = MaximalSubtrees(RandomNodeMap(ranks, 1 + ranks % 5, random));
    std::vector<std::string> partials;
    for (const NodeSubtree& subtree : subtrees) partials.push_back(Parenthesized(subtree.lo, subtree.count));
    const ReduceProgram program = BuildReduceProgram(0, ranks, [&](int lo, int n) {
      for (size_t i = 0; i < subtrees.size(); ++i) {
        if (subtrees[i].lo == lo && subtrees[i].count == n) return static_cast<int>(i);
      }
      return -1;
    });
    EXPECT_EQ(Evaluate(program, partials), Parenthesized(0, ranks));
  }
}

TEST(ReductionTree, AnAlignedPowerOfTwoOnANodeIsOnePartial) {
  const std::vector<NodeSubtree> subtrees = MaximalSubtrees({0, 0, 0, 0, 1, 1, 1, 1, 2, 2});
  ASSERT_EQ(subtrees.size(), 3U);
  EXPECT_EQ(subtrees[1].lo, 4);
  EXPECT_EQ(subtrees[1].count, 4);
  EXPECT_TRUE(MaximalSubtrees({}).empty());
}

}  // namespace
}  // namespace weft
