// The part of a node in the canonical tree of a reduction. Pure.
#pragma once

#include <vector>

#include "src/comm/base/group_placement.h"

namespace weft {

// A right child of the canonical tree, T(lo, count).
struct TreeBranch {
  int lo;
  int count;
  bool is_local;  // Its sum is that of a chain of the same node. Otherwise the node of rank `lo` sends it.
};

// The trees T(lo, n) of one `lo`, from a maximal subtree of the node up to the largest tree that begins at
// `lo`. The node of rank `lo` computes their sums.
struct TreeChain {
  int lo;
  int own_count;  // Ranks of the maximal subtree, which are all on this node.
  int count;      // Ranks of the largest tree.
  int parent;     // The node of this rank needs the sum of the largest tree. -1: it is the whole sum.
  std::vector<TreeBranch> branches;
};

// The chains of a node. A chain comes after those whose sums it needs.
std::vector<TreeChain> ChainsOfNode(const GroupPlacement& placement, int node);
// True if `from` sends a partial sum to `to`.
bool SendsSum(const GroupPlacement& placement, int from, int to);

}  // namespace weft
