// The canonical reduction tree over the ranks of a group, and its subtrees that lie on a single node. Pure.
//
// Note [Canonical tree]
// Problem: floating-point addition is not associative, so the order of additions decides the bits of a sum.
// Rule: T(lo, n) reduces the ranks lo .. lo+n-1. A single rank is a leaf. Otherwise T splits at the largest
// power of two below n, and adds the left subtree and the right subtree.
// Why it suffices: the shape of T depends on n alone. It does not depend on the node map or on the transport,
// so a sum has the same bits everywhere. If all ranks of a subtree are on one node, that node evaluates the
// subtree and sends one partial sum; the tree above it does not change. For powers of two, the tree over
// replicate x shard ranks (replicate-major) is the tree over shard groups, continued by the tree over
// replicas.
// Exception: partial sums of bf16 are rounded before they are sent, so their bits depend on the node map.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/functional/function_ref.h>

namespace weft {

// Number of ranks in the left subtree of T(lo, n). REQUIRES: n >= 2.
int LeftSize(int n);

// A maximal subtree of T(0, P) whose ranks are all on one node.
struct NodeSubtree {
  int lo;
  int count;
  int node;
};

// The maximal single-node subtrees in tree order. `node_of_rank` has the node of each rank.
std::vector<NodeSubtree> MaximalSubtrees(const std::vector<int>& node_of_rank);

// A reduction tree as a program for a stack machine whose values are blocks of elements. The caller of
// BuildReduceProgram numbers the leaves.
struct ReduceInstruction {
  enum class Code : uint8_t {
    kLoad,      // Push leaf a.
    kLoadPair,  // Push leaf a (+) leaf b.
    kFoldLeaf,  // top = top (+) leaf a.
    kFoldTop,   // Pop right; top = top (+) right.
  };
  Code code;
  int a = 0;
  int b = 0;
};
struct ReduceProgram {
  std::vector<ReduceInstruction> instructions;
  int depth = 0;  // Largest number of blocks on the stack.
  // The leaves in order if the tree is balanced: their number is a power of two, and all lie at the same
  // depth. Such a tree can be evaluated element by element, without the stack. Empty for other trees.
  std::vector<int> balanced_leaves = {};
};

// The program of T(lo, n). `leaf_of(lo, n)` returns the number of the leaf that holds the whole subtree, or
// -1 if the subtree is to be split further. REQUIRES: every single rank is a leaf or part of one.
ReduceProgram BuildReduceProgram(int lo, int n, absl::FunctionRef<int(int lo, int n)> leaf_of);
// The program whose leaves are the inputs of the ranks of the subtree: leaf 0 is that of rank `lo`.
ReduceProgram ReduceProgramOfRanks(int lo, int n);

}  // namespace weft
