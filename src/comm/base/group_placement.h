// A process group seen against the node map: who is near, who is far, and who stands for whom. Pure.
#pragma once

#include <vector>

#include "src/comm/base/reduction_tree.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/process_group.h"

namespace weft {

class GroupPlacement {
 public:
  GroupPlacement(ProcessGroup group, const NodeMap& nodes);

  const ProcessGroup& group() const { return group_; }
  int size() const { return group_.size(); }
  int me() const { return group_.group_rank; }
  // The bootstrap rank of a group rank.
  int WorldRank(int member) const { return group_.ranks[static_cast<size_t>(member)]; }

  // Nodes are numbered from 0 in order of their first member.
  int node_count() const { return static_cast<int>(members_.size()); }
  int NodeOf(int member) const { return node_of_[static_cast<size_t>(member)]; }
  bool IsLocal(int member) const { return NodeOf(member) == NodeOf(me()); }
  bool spans_nodes() const { return node_count() > 1; }
  // Group ranks on the caller's node other than the caller, starting behind it: peers start at different
  // places.
  const std::vector<int>& local_peers() const { return local_peers_; }

  int IndexInNode(int member) const { return index_in_node_[static_cast<size_t>(member)]; }

  // Who on `node` deals with `member`'s part of the data, so that every rank of a node drives a share of its
  // traffic. On the member's own node, the member itself.
  int Agent(int node, int member) const;

  // The group's maximal single-node subtrees, nodes numbered as here.
  const std::vector<NodeSubtree>& subtrees() const { return subtrees_; }
  // Who sends the partial of subtree `index` that `target` needs.
  int PartialSender(int index, int target) const;

 private:
  ProcessGroup group_;
  std::vector<int> node_of_;
  std::vector<int> index_in_node_;
  std::vector<std::vector<int>> members_;  // By node.
  std::vector<int> local_peers_;
  std::vector<NodeSubtree> subtrees_;
};

}  // namespace weft
