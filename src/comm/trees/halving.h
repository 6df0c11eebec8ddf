// Exchanges of a reduce-scatter by recursive halving over the nodes of a group. Pure.
//
// Note [Halving]
// Problem: every node has a sum of each part, and needs the total of its own. In a direct exchange it sends a
// message to every other node.
// Rule: at level k, the nodes form groups of 2^(k+1) consecutive ones, of which the last may be smaller. The
// nodes of a group together hold the sums of the group for all parts, each part at one of them. To that end
// the two halves of a group exchange: a part goes to the left half if bit k of its owner is 0, and to the
// right half otherwise. *Class* c of level k has the parts whose owners' numbers are c modulo 2^(k+1). A node
// of a full group holds one class. In a smaller group, a node may hold several, and exchange several
// messages.
// Why it suffices: a group's sum is that of its left half plus that of its right half, which is T of Note
// [Canonical tree], as a tree over n nodes is the tree over the next power of two without its last leaves. A
// node sends at most as many bytes as in a direct exchange: what it holds shrinks with each message. At the
// last level, every class has the part of one node, or none, which ends at that node.
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
// MPICH", IJHPCA 19 (2005). There distances shrink; here they grow, which keeps the order of additions.
#pragma once

#include <vector>

namespace weft {

// A node and its peer each add what the other sends to what they keep.
struct HalvingExchange {
  int level;
  int peer;
  int kept;         // Class of the level.
  int sent;         // Class of the level.
  bool keeps_left;  // The node's own sum is the left operand.
};

// Levels over `nodes` nodes: log2, rounded up.
int HalvingLevels(int nodes);
// The exchanges of a node, by level.
std::vector<HalvingExchange> HalvingExchangesOf(int node, int nodes);
// At least the number of exchanges of any node in which a message is not empty, if only the first `owners`
// nodes have parts: a power of two, or all nodes. HalvingLevels if `nodes` is a power of two.
int MostHalvingExchanges(int nodes, int owners);
// Place of a class of `level` among the nodes if they are ordered by their numbers with reversed bits: the
// first place of its owners. They have 2^(levels - level - 1) places, some of which no node has.
int FirstPlaceOfClass(int number, int levels);

}  // namespace weft
