#include "src/comm/base/group_placement.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {

namespace {

// A partition of the members of a group: the number of the set of each, in the order of the first members,
// and the members of each set.
struct Partition {
  std::vector<int> set_of;
  std::vector<std::vector<int>> members;
};

Partition PartitionBy(const std::vector<int>& ranks, const NodeMap& map) {
  Partition partition;
  std::map<int, int> number_of;  // By the number in the map.
  for (size_t member = 0; member < ranks.size(); ++member) {
    const int world_number = map.node_of_rank[static_cast<size_t>(ranks[member])];
    const int next = static_cast<int>(partition.members.size());
    const auto [it, inserted] = number_of.try_emplace(world_number, next);
    if (inserted) partition.members.emplace_back();
    partition.set_of.push_back(it->second);
    partition.members[static_cast<size_t>(it->second)].push_back(static_cast<int>(member));
  }
  return partition;
}

// True if all sets have as many members, a power of two, but for the last, which may have fewer.
bool HaveEqualPowersOfTwo(const std::vector<std::vector<int>>& sets) {
  const size_t size = sets.front().size();
  return std::has_single_bit(size) && sets.back().size() <= size &&
         std::all_of(sets.begin(), sets.end() - 1,
                     [size](const std::vector<int>& members) { return members.size() == size; });
}

// The index of each of `count` members in its set.
std::vector<int> IndicesInSets(const std::vector<std::vector<int>>& sets, size_t count) {
  std::vector<int> indices(count);
  for (const std::vector<int>& members : sets) {
    for (size_t index = 0; index < members.size(); ++index)
      indices[static_cast<size_t>(members[index])] = static_cast<int>(index);
  }
  return indices;
}

}  // namespace

std::shared_ptr<const GroupPlacement::Tables> GroupPlacement::MakeTables(const std::vector<int>& ranks,
                                                                         const NodeMap& nodes,
                                                                         const NodeMap& domains) {
  auto tables = std::make_shared<Tables>();
  Partition by_node = PartitionBy(ranks, nodes);
  tables->node_of = std::move(by_node.set_of);
  tables->members = std::move(by_node.members);
  tables->nodes_are_consecutive = std::is_sorted(tables->node_of.begin(), tables->node_of.end());
  tables->index_in_node = IndicesInSets(tables->members, ranks.size());
  tables->nodes_are_subtrees = tables->nodes_are_consecutive && HaveEqualPowersOfTwo(tables->members);
  tables->subtrees = MaximalSubtrees(tables->node_of);
  tables->subtrees_of_node.resize(tables->members.size());
  for (size_t index = 0; index < tables->subtrees.size(); ++index) {
    std::vector<int>& of_node = tables->subtrees_of_node[static_cast<size_t>(tables->subtrees[index].node)];
    tables->subtree_in_node.push_back(static_cast<int>(of_node.size()));
    of_node.push_back(static_cast<int>(index));
  }
  Partition by_domain = PartitionBy(ranks, domains);
  tables->domain_of = std::move(by_domain.set_of);
  tables->in_domain = std::move(by_domain.members);
  tables->index_in_domain = IndicesInSets(tables->in_domain, ranks.size());
  tables->domain_subtrees = MaximalSubtrees(tables->domain_of);
  if (tables->in_domain.size() != tables->members.size())
    tables->domains_hash = Hash64(tables->domain_of.data(), tables->domain_of.size() * sizeof(int));
  return tables;
}

GroupPlacement::GroupPlacement(ProcessGroup group, std::shared_ptr<const Tables> tables)
    : group_(std::move(group)), tables_(std::move(tables)) {
  const std::vector<int>& local = MembersOf(NodeOf(me()));
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

int GroupPlacement::DomainLeader(int member) const {
  const int writer = PartLeader(NodeOf(me()), member);
  if (IsInDomain(writer)) return writer;
  const std::vector<int>& domain = MembersOfDomain();
  return domain[static_cast<size_t>(tables_->index_in_domain[static_cast<size_t>(member)]) % domain.size()];
}

int GroupPlacement::LocalCounterpart(int member) const {
  const std::vector<int>& local = MembersOf(NodeOf(me()));
  const auto place = static_cast<size_t>(IndexInNode(member));
  WEFT_CHECK(place < local.size(), "the nodes of a group with mirrored nodes have unequal numbers of ranks");
  return local[place];
}

int GroupPlacement::PartialSender(int index, int target) const {
  const NodeSubtree& subtree = tables_->subtrees[static_cast<size_t>(index)];
  return subtree.count == 1 ? subtree.lo : PartLeader(subtree.node, target);
}

}  // namespace weft
