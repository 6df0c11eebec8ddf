#include "src/comm/trees/tree_chains.h"

#include <algorithm>

namespace weft {

ReduceProgram ProgramOfChain(const TreeChain& chain, int own_leaf, int first_branch,
                             absl::FunctionRef<int(int member)> leaf_of) {
  return BuildReduceProgram(chain.lo, chain.count, [&](int lo, int n) {
    if (lo == chain.lo && n == chain.own_count && own_leaf >= 0) return own_leaf;
    if (lo < chain.lo + chain.own_count) return n == 1 ? leaf_of(lo) : -1;
    const auto found = std::find_if(chain.branches.begin(), chain.branches.end(),
                                    [lo](const TreeBranch& branch) { return branch.lo == lo; });
    return first_branch + static_cast<int>(found - chain.branches.begin());
  });
}

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
