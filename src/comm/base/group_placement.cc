#include "src/comm/base/group_placement.h"

#include <map>
#include <utility>

#include "weft/core/status.h"

namespace weft {

std::shared_ptr<const GroupPlacement::Tables> GroupPlacement::MakeTables(const std::vector<int>& ranks,
                                                                         const NodeMap& nodes) {
  auto tables = std::make_shared<Tables>();
  std::map<int, int> number_of_node;  // By the node's number in the node map.
  for (size_t member = 0; member < ranks.size(); ++member) {
    const int world_node = nodes.node_of_rank[static_cast<size_t>(ranks[member])];
    const int next = static_cast<int>(tables->members.size());
    const auto [it, inserted] = number_of_node.try_emplace(world_node, next);
    if (inserted) tables->members.emplace_back();
    std::vector<int>& node_members = tables->members[static_cast<size_t>(it->second)];
    tables->node_of.push_back(it->second);
    tables->index_in_node.push_back(static_cast<int>(node_members.size()));
    node_members.push_back(static_cast<int>(member));
  }
  tables->subtrees = MaximalSubtrees(tables->node_of);
  std::vector<int> count_of_node(tables->members.size());
  for (const NodeSubtree& subtree : tables->subtrees)
    tables->subtree_in_node.push_back(count_of_node[static_cast<size_t>(subtree.node)]++);
  return tables;
}

GroupPlacement::GroupPlacement(ProcessGroup group, std::shared_ptr<const Tables> tables)
    : group_(std::move(group)), tables_(std::move(tables)) {
  const std::vector<int>& local = tables_->members[static_cast<size_t>(NodeOf(me()))];
  const auto place = static_cast<size_t>(IndexInNode(me()));
  for (size_t step = 1; step < local.size(); ++step)
    local_peers_.push_back(local[(place + step) % local.size()]);
}

int GroupPlacement::PartLeader(int node, int member) const {
  if (node == NodeOf(member)) return member;
  const std::vector<int>& node_members = tables_->members[static_cast<size_t>(node)];
  return node_members[static_cast<size_t>(tables_->index_in_node[static_cast<size_t>(member)]) %
                      node_members.size()];
}

int GroupPlacement::LocalCounterpart(int member) const {
  const std::vector<int>& local = tables_->members[static_cast<size_t>(NodeOf(me()))];
  const auto place = static_cast<size_t>(IndexInNode(member));
  WEFT_CHECK(place < local.size(), "the nodes of a group with mirrored nodes have unequal numbers of ranks");
  return local[place];
}

int GroupPlacement::PartialSender(int index, int target) const {
  const NodeSubtree& subtree = tables_->subtrees[static_cast<size_t>(index)];
  return subtree.count == 1 ? subtree.lo : PartLeader(subtree.node, target);
}

}  // namespace weft
