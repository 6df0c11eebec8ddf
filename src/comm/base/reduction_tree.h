// The canonical reduction tree over the ranks of a group, and what of it each node can evaluate alone. Pure.
//
// Note [Canonical tree]
// T(lo, n) reduces ranks lo .. lo+n-1: a single rank is a leaf; else T splits at the largest power of two
// below n and adds the left half to the right half. The shape depends on n alone, never on who is on which
// node or on the transport, so a sum has the same bits everywhere. A subtree whose ranks all live on one node
// can be evaluated there and travel as one partial: the tree above it does not change. For powers of two the
// tree over replicate x shard ranks (replicate-major) is the tree over shard groups, continued by the tree
// over replicas.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/functional/function_ref.h>

namespace weft {

// Where T(lo, n) splits: the size of its left part. n >= 2.
int LeftSize(int n);

// A maximal subtree of T(0, P) whose ranks all live on one node.
struct NodeSubtree {
  int lo;
  int count;
  int node;
};

// The maximal single-node subtrees, in tree order, for ranks placed as `node_of_rank` says.
std::vector<NodeSubtree> MaximalSubtrees(const std::vector<int>& node_of_rank);

// A reduction tree as a program for a stack of blocks. Leaves are numbered by the builder's caller.
struct ReduceInstruction {
  enum class Code : uint8_t {
    kLoad,      // push leaf a
    kLoadPair,  // push leaf a (+) leaf b
    kFoldLeaf,  // top = top (+) leaf a
    kFoldTop,   // pop right; top = top (+) right
  };
  Code code;
  int a = 0;
  int b = 0;
};
struct ReduceProgram {
  std::vector<ReduceInstruction> instructions;
  int depth = 0;  // Blocks that the stack needs.
  // Its leaves in order, if they are a power of two that all lie at the same depth: such a tree can be
  // evaluated element by element, without the stack. Else empty.
  std::vector<int> balanced_leaves = {};
};

// The program of T(lo, n). `leaf_of(lo, n)` gives the leaf's number where a subtree enters as a whole, or -1
// where it must be split further; single ranks must be leaves.
ReduceProgram BuildReduceProgram(int lo, int n, absl::FunctionRef<int(int lo, int n)> leaf_of);

}  // namespace weft
