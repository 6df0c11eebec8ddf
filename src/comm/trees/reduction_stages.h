// Division of the reduction of a part into stages, so that few partial sums of other nodes are needed at
// once. Pure.
//
// Note [Reduction stages]
// Problem: the owner of a part needs a partial sum of every remote subtree. If it reduced all of them in one
// step, its scratch memory would grow with the number of nodes.
// Rule: a *stage* evaluates a subtree of the canonical tree that needs at most `fan_in` partial sums, and
// saves its value. The stage that evaluates the second child of a subtree also adds the saved value of the
// first, and so on up the tree. Saved values have the type in which sums are accumulated, so that saving does
// not round. Stages run in a fixed order. Rank r evaluates first the child of a subtree that it would be in
// if its number were continued there: at step k, owner r thus needs the sum of rank r XOR k, if ranks are
// alone on their nodes, and every rank sends to one owner at a time.
// Why it suffices: the additions and their operands are those of the canonical tree, in whatever order the
// partial sums arrive. On the way to a leaf, at most one value is saved for each level of the tree.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/comm/base/group_placement.h"
#include "src/comm/base/reduction_tree.h"

namespace weft {

// A leaf of the program of a stage.
struct StageInput {
  enum class Kind : uint8_t {
    kLocalRank,  // `index` is a member of the group on this node.
    kDomainSum,  // `index` is a position in GroupPlacement::domain_subtrees(). See Note [Domain sums].
    kRemote,     // `index` is a position in ReductionStages::remote.
    kSaved,      // `index` is that of a saved value.
  };
  Kind kind;
  int index;
};

struct ReductionStage {
  ReduceProgram program;
  std::vector<StageInput> inputs;  // By the number of the leaf.
  // The stage needs the positions [first_remote, end_remote) of ReductionStages::remote.
  int first_remote, end_remote;
  int saves_to;  // Index of the saved value, or kResult.

  static constexpr int kResult = -1;
};

struct ReductionStages {
  std::vector<ReductionStage> stages;  // In order. The last one computes the result.
  std::vector<int> remote;  // The remote subtrees, as indices of GroupPlacement::subtrees(), in the
                            // order in which the stages need them.
  int saved_values = 0;     // Largest number of values that are saved at once.
};

// The stages of the reduction of the caller's part. Keeps the last result in the placement, because it takes
// time in proportion to the ranks. REQUIRES: fan_in >= 1.
// Thread safety: one caller at a time for each placement (the engine's lock).
std::shared_ptr<const ReductionStages> StagesOf(const GroupPlacement& placement, int fan_in);

}  // namespace weft
