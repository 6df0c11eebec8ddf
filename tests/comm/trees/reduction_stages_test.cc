// Checks the stages of a reduction against the program of the whole canonical tree, as text.
#include "src/comm/trees/reduction_stages.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

std::string Fold(const std::string& a, const std::string& b) { return absl::StrCat("(", a, "+", b, ")"); }

std::string Evaluate(const ReduceProgram& program, const std::vector<std::string>& leaves) {
  using Code = ReduceInstruction::Code;
  std::vector<std::string> stack;
  for (const ReduceInstruction& step : program.instructions) {
    const auto leaf = [&](int index) { return leaves.at(static_cast<size_t>(index)); };
    if (step.code == Code::kLoad) stack.push_back(leaf(step.a));
    if (step.code == Code::kLoadPair) stack.push_back(Fold(leaf(step.a), leaf(step.b)));
    if (step.code == Code::kFoldLeaf) stack.back() = Fold(stack.back(), leaf(step.a));
    if (step.code == Code::kFoldTop) {
      const std::string right = stack.back();
      stack.pop_back();
      stack.back() = Fold(stack.back(), right);
    }
  }
  return stack.back();
}

// T(lo, n) over single ranks, in which remote ranks of one subtree are one leaf.
std::string Canonical(const GroupPlacement& placement, int lo, int n) {
  for (const NodeSubtree& subtree : placement.subtrees()) {
    if (subtree.lo == lo && subtree.count == n && !placement.IsLocal(lo)) return absl::StrCat(lo, ":", n);
  }
  if (n == 1) return absl::StrCat(lo);
  const int left = LeftSize(n);
  return Fold(Canonical(placement, lo, left), Canonical(placement, lo + left, n - left));
}

std::string Evaluate(const GroupPlacement& placement, const ReductionStages& stages) {
  std::vector<std::string> saved(static_cast<size_t>(stages.saved_values));
  for (const ReductionStage& stage : stages.stages) {
    std::vector<std::string> leaves;
    for (const StageInput& input : stage.inputs) {
      const auto index = static_cast<size_t>(input.index);
      if (input.kind == StageInput::Kind::kLocalRank) leaves.push_back(absl::StrCat(input.index));
      if (input.kind == StageInput::Kind::kSaved) leaves.push_back(saved.at(index));
      if (input.kind == StageInput::Kind::kRemote) {
        EXPECT_GE(input.index, stage.first_remote);
        EXPECT_LT(input.index, stage.end_remote);
        const NodeSubtree& subtree = placement.subtrees()[static_cast<size_t>(stages.remote.at(index))];
        leaves.push_back(absl::StrCat(subtree.lo, ":", subtree.count));
      }
    }
    std::string value = Evaluate(stage.program, leaves);
    if (stage.saves_to == ReductionStage::kResult) return value;
    saved.at(static_cast<size_t>(stage.saves_to)) = std::move(value);
  }
  return "no result";
}

GroupPlacement PlacementOf(const NodeMap& nodes, int me) {
  std::vector<int> ranks(static_cast<size_t>(nodes.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {ProcessGroup{"all", ranks, me}, nodes};
}

void Check(const NodeMap& nodes, int me, int fan_in) {
  SCOPED_TRACE(::testing::Message() << nodes.size() << " ranks, rank " << me << ", fan-in " << fan_in);
  const GroupPlacement placement = PlacementOf(nodes, me);
  const ReductionStages& stages = *StagesOf(placement, fan_in);
  EXPECT_EQ(Evaluate(placement, stages), Canonical(placement, 0, nodes.size()));
  int position = 0;
  for (const ReductionStage& stage : stages.stages) {
    EXPECT_EQ(stage.first_remote, position);
    EXPECT_LE(stage.end_remote - stage.first_remote, fan_in);
    position = stage.end_remote;
  }
  EXPECT_EQ(position, static_cast<int>(stages.remote.size()));
  EXPECT_LE(stages.saved_values, std::bit_width(static_cast<unsigned>(nodes.size())));
}

TEST(ReductionStages, AddInTheOrderOfTheCanonicalTree) {
  for (const int ranks : {1, 2, 3, 7, 16, 41}) {
    for (const int ranks_per_node : {1, 2, 3}) {
      for (const int me : {0, ranks / 2, ranks - 1}) {
        for (const int fan_in : {1, 2, 5, 64})
          Check(NodeMap::RanksPerNode(ranks, ranks_per_node), me, fan_in);
      }
    }
  }
}

TEST(ReductionStages, AddInTheOrderOfTheCanonicalTreeOnScatteredRanks) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    std::vector<int> map(static_cast<size_t>(3 + round));
    for (int& node : map) node = std::uniform_int_distribution<int>(0, 5)(random);
    NodeMap nodes{map};
    Check(nodes, round % nodes.size(), 1 + round % 4);
  }
}

TEST(ReductionStages, LetEachRankSendToOneOwnerAtATime) {
  constexpr int kRanks = 64;
  for (const int me : {0, 5, 63}) {
    const GroupPlacement placement = PlacementOf(NodeMap::RanksPerNode(kRanks, 1), me);
    const ReductionStages& stages = *StagesOf(placement, 8);
    ASSERT_EQ(stages.remote.size(), static_cast<size_t>(kRanks - 1));
    for (int step = 1; step < kRanks; ++step) {
      const int subtree = stages.remote[static_cast<size_t>(step - 1)];
      EXPECT_EQ(placement.subtrees()[static_cast<size_t>(subtree)].lo, me ^ step);
    }
  }
}

TEST(ReductionStages, AreMadeOnceForAPlacement) {
  const GroupPlacement placement = PlacementOf(NodeMap::RanksPerNode(9, 1), 3);
  const auto stages = StagesOf(placement, 2);
  EXPECT_EQ(StagesOf(placement, 2), stages);
  EXPECT_NE(StagesOf(placement, 3)->stages.size(), stages->stages.size());
  EXPECT_EQ(StagesOf(placement, 2)->stages.size(), stages->stages.size());
}

TEST(ReductionStages, SaveOneValueForEachLevelAtMost) {
  const GroupPlacement placement = PlacementOf(NodeMap::RanksPerNode(1000, 1), 77);
  const ReductionStages& stages = *StagesOf(placement, 32);
  EXPECT_LE(stages.saved_values, 5);  // 1,000 / 32 is below 2^5.
}

}  // namespace
}  // namespace weft
