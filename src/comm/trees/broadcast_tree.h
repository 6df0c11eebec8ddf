// The two trees along which a broadcast between nodes travels. Pure.
//
// Note [Broadcast trees]
// Problem: if the root sends the whole message to every node, its link carries (nodes - 1) times the message.
// A chain of nodes would carry it once in each direction, but a small message would pass through all nodes.
// Rule: each half of the message travels along a tree of its own. Both are in-order binary trees over the
// numbers of the nodes. The second one has them shifted by one or, if the number of nodes is even, in
// reverse. A node with children in one tree is then a leaf of the other. The root of a broadcast may be any
// node: each half flows from it along the edges of its tree.
// Why it suffices: every node has at most three neighbors in one tree, and one in the other. Its link carries
// half of the message for each neighbor, so at most twice the message, both directions counted. Any two nodes
// are at most 2 * log2(nodes) edges apart. The trees do not depend on the root, so that ranks which disagree
// about it still agree about the edges over which they compare descriptors.
// Source: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
// and scan", Parallel Computing 35 (2009).
#pragma once

#include <optional>

#include <absl/container/inlined_vector.h>

namespace weft {

inline constexpr int kBroadcastTrees = 2;

// The neighbors of a node in a tree.
struct BroadcastEdges {
  std::optional<int> source;                 // The node from which this node receives. The root has none.
  absl::InlinedVector<int, 3> targets = {};  // The nodes to which it sends.
};

// The edges of `node` in tree number `tree` over `nodes` nodes, if the message starts at node `root`.
// REQUIRES: 0 <= tree < kBroadcastTrees; node and root are in [0, nodes).
BroadcastEdges EdgesOfBroadcast(int tree, int nodes, int root, int node);

}  // namespace weft
