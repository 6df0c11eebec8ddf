#include "src/comm/trees/broadcast_tree.h"

#include <bit>

namespace weft {
namespace {

constexpr int kNoLabel = -1;

// In-order binary tree over the labels [0, count). Label 0 is its root and has one child. The height of any
// other label is the number of zeros at its end, so odd labels are leaves.
class InOrderTree {
 public:
  explicit InOrderTree(int count) : count_(count) {}

  int ParentOf(int label) const {
    if (label == 0) return kNoLabel;
    const int bit = label & -label;
    const int below = label ^ bit;
    const int parent = below | (bit << 1);
    return parent < count_ ? parent : below;
  }
  absl::InlinedVector<int, 2> ChildrenOf(int label) const {
    if (label == 0) {
      const int child = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count_))) / 2;
      return count_ > 1 ? absl::InlinedVector<int, 2>{child} : absl::InlinedVector<int, 2>{};
    }
    absl::InlinedVector<int, 2> children;
    int step = (label & -label) / 2;
    if (step > 0) children.push_back(label - step);
    while (step > 0 && label + step >= count_) step /= 2;
    if (step > 0) children.push_back(label + step);
    return children;
  }
  // The child of `label` whose subtree has `other`, or `label`'s parent. REQUIRES: they differ.
  int NeighborToward(int label, int other) const {
    for (int at = other; at != kNoLabel; at = ParentOf(at)) {
      if (ParentOf(at) == label) return at;
    }
    return ParentOf(label);
  }

 private:
  int count_;
};

// Maps nodes to the labels of a tree, and back.
int LabelOf(int tree, int nodes, int node) {
  if (tree == 0) return node;
  return nodes % 2 == 0 ? nodes - 1 - node : (node + 1) % nodes;
}
int NodeOfLabel(int tree, int nodes, int label) {
  if (tree == 0) return label;
  return nodes % 2 == 0 ? nodes - 1 - label : (label + nodes - 1) % nodes;
}

}  // namespace

BroadcastEdges EdgesOfBroadcast(int tree, int nodes, int root, int node) {
  const InOrderTree labels(nodes);
  const int label = LabelOf(tree, nodes, node);
  const int source = root == node ? kNoLabel : labels.NeighborToward(label, LabelOf(tree, nodes, root));
  BroadcastEdges edges;
  if (source != kNoLabel) edges.source = NodeOfLabel(tree, nodes, source);
  const auto add_target = [&](int neighbor) {
    if (neighbor != source && neighbor != kNoLabel)
      edges.targets.push_back(NodeOfLabel(tree, nodes, neighbor));
  };
  for (const int child : labels.ChildrenOf(label)) add_target(child);
  add_target(labels.ParentOf(label));
  return edges;
}

}  // namespace weft
