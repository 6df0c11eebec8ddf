#include "src/comm/base/group_placement.h"

#include <map>
#include <utility>

#include "weft/core/status.h"

namespace weft {

GroupPlacement::GroupPlacement(ProcessGroup group, const NodeMap& nodes) : group_(std::move(group)) {
  std::map<int, int> number_of_node;  // By the node's number in the node map.
  for (int member = 0; member < size(); ++member) {
    const int world_node = nodes.node_of_rank[static_cast<size_t>(WorldRank(member))];
    const auto [it, inserted] = number_of_node.try_emplace(world_node, static_cast<int>(members_.size()));
    if (inserted) members_.emplace_back();
    std::vector<int>& node_members = members_[static_cast<size_t>(it->second)];
    node_of_.push_back(it->second);
    index_in_node_.push_back(static_cast<int>(node_members.size()));
    node_members.push_back(member);
  }
  for (int step = 1; step < size(); ++step) {
    const int member = (me() + step) % size();
    if (IsLocal(member)) local_peers_.push_back(member);
  }
  subtrees_ = MaximalSubtrees(node_of_);
  std::vector<int> count_of_node(members_.size());
  for (const NodeSubtree& subtree : subtrees_) {
    subtree_in_node_.push_back(count_of_node[static_cast<size_t>(subtree.node)]++);
  }
}

int GroupPlacement::PartLeader(int node, int member) const {
  if (node == NodeOf(member)) return member;
  const std::vector<int>& node_members = members_[static_cast<size_t>(node)];
  return node_members[static_cast<size_t>(index_in_node_[static_cast<size_t>(member)]) % node_members.size()];
}

int GroupPlacement::LocalCounterpart(int member) const {
  const std::vector<int>& local = members_[static_cast<size_t>(NodeOf(me()))];
  const auto place = static_cast<size_t>(IndexInNode(member));
  WEFT_CHECK(place < local.size(), "the nodes of a group with mirrored nodes have unequal numbers of ranks");
  return local[place];
}

int GroupPlacement::PartialSender(int index, int target) const {
  const NodeSubtree& subtree = subtrees_[static_cast<size_t>(index)];
  return subtree.count == 1 ? subtree.lo : PartLeader(subtree.node, target);
}

}  // namespace weft
