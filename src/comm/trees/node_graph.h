// Graphs over the nodes of a group, by which control messages travel. Pure.
//
// Note [Node graphs]
// Problem: if every rank sends a control message to every other, their number grows with the square of the
// ranks.
// Rule: a barrier and a small all-reduce send one message up and one down a binomial tree: see Note [Tree
// collectives]. Notices, such as of a failure, flood: a node is a neighbor of those at the distances 1, 2, 4,
// … in both directions. A rank that gets a notice for the first time forwards it to its neighbors: those
// among the nodes of all ranks, and those among the nodes of each group that it is in, because other ranks
// may have left.
// Why it suffices: each rank sends a multiple of log2(nodes) messages. As long as fewer nodes are silent than
// a node has neighbors, the others stay connected, so a notice takes another way around them. Of each
// neighbor, several ranks get it, and ranks of a node tell each other through node memory. With up to five
// nodes, all are neighbors.
#pragma once

#include <set>
#include <vector>

namespace weft {

// The neighbors of `node` among `nodes` nodes, ascending.
inline std::set<int> NeighborNodes(int node, int nodes) {
  std::set<int> neighbors;
  for (int distance = 1; distance < nodes; distance *= 2) {
    neighbors.insert((node + distance) % nodes);
    neighbors.insert((node + nodes - distance) % nodes);
  }
  neighbors.erase(node);
  return neighbors;
}

// The parent of a node in the binomial tree whose root is node 0. REQUIRES: node > 0.
inline int TreeParent(int node) { return node & (node - 1); }

inline std::vector<int> TreeChildren(int node, int nodes) {
  std::vector<int> children;
  for (int distance = 1; (node == 0 || distance < (node & -node)) && node + distance < nodes; distance *= 2)
    children.push_back(node + distance);
  return children;
}

}  // namespace weft
