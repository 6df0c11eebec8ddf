#include "src/comm/trees/tree_chains.h"

#include <algorithm>

namespace weft {

std::vector<TreeChain> ChainsOfNode(const GroupPlacement& placement, int node) {
  std::vector<TreeChain> chains;
  for (const int index : placement.SubtreesOf(node)) {
    const NodeSubtree& subtree = placement.subtrees()[static_cast<size_t>(index)];
    TreeChain& chain = chains.emplace_back(TreeChain{subtree.lo, subtree.count, 0, -1, {}});
    int lo = 0;
    int count = placement.size();
    while (lo != subtree.lo || count != subtree.count) {
      if (lo == subtree.lo && chain.count == 0) chain.count = count;
      const int left = LeftSize(count);
      if (subtree.lo >= lo + left) {
        chain.parent = lo;
        lo += left;
        count -= left;
        continue;
      }
      if (lo == subtree.lo)
        chain.branches.push_back({lo + left, count - left, placement.NodeOf(lo + left) == node});
      count = left;
    }
    if (chain.count == 0) chain.count = subtree.count;
  }
  std::reverse(chains.begin(), chains.end());
  return chains;
}

bool SendsSum(const GroupPlacement& placement, int from, int to) {
  const std::vector<TreeChain> chains = ChainsOfNode(placement, from);
  return std::any_of(chains.begin(), chains.end(), [&](const TreeChain& chain) {
    return chain.parent >= 0 && placement.NodeOf(chain.parent) == to;
  });
}

}  // namespace weft
