// Node locality of a group: local peers, remote ranks, and the leader of each node and of each share domain
// for each part. Pure.
//
// `member` is always a rank of the group.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/comm/base/reduction_tree.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/process_group.h"

namespace weft {

struct ReductionStages;

class GroupPlacement {
 public:
  // The part that is equal on all ranks of a group. Simulated ranks share it.
  struct Tables {
    std::vector<int> node_of;               // By member.
    std::vector<int> index_in_node;         // By member.
    std::vector<std::vector<int>> members;  // By node.
    bool nodes_are_consecutive = false;     // The members of each node are.
    bool nodes_are_subtrees = false;
    std::vector<NodeSubtree> subtrees;
    std::vector<int> subtree_in_node;  // By subtree.
    std::vector<std::vector<int>> subtrees_of_node;
    std::vector<int> domain_of;               // By member.
    std::vector<std::vector<int>> in_domain;  // Members by domain.
    std::vector<int> index_in_domain;         // By member.
    std::vector<NodeSubtree> domain_subtrees;
    uint64_t domains_hash = 0;
  };
  // `domains`: the share domains of all ranks (ShareDomains::map).
  static std::shared_ptr<const Tables> MakeTables(const std::vector<int>& ranks, const NodeMap& nodes,
                                                  const NodeMap& domains);

  // Each node is one share domain.
  GroupPlacement(const ProcessGroup& group, const NodeMap& nodes)
      : GroupPlacement(group, MakeTables(group.ranks, nodes, nodes)) {}
  GroupPlacement(ProcessGroup group, std::shared_ptr<const Tables> tables);

  const ProcessGroup& group() const { return group_; }
  int size() const { return group_.size(); }
  int me() const { return group_.group_rank; }
  // The bootstrap rank of a group rank.
  int BootstrapRank(int member) const { return group_.ranks[static_cast<size_t>(member)]; }

  // Nodes are numbered from 0, in the order of their first members.
  int node_count() const { return static_cast<int>(tables_->members.size()); }
  int NodeOf(int member) const { return tables_->node_of[static_cast<size_t>(member)]; }
  bool IsLocal(int member) const { return NodeOf(member) == NodeOf(me()); }
  bool spans_nodes() const { return node_count() > 1; }
  // The other group ranks on the caller's node. The list starts at the caller's successor, so that every rank
  // begins with a different peer.
  const std::vector<int>& local_peers() const { return local_peers_; }

  // The members on `node`, ascending: by IndexInNode.
  const std::vector<int>& MembersOf(int node) const { return tables_->members[static_cast<size_t>(node)]; }
  // True if the members of each node are consecutive.
  bool nodes_are_consecutive() const { return tables_->nodes_are_consecutive; }
  // True if, in addition, all nodes have as many members, a power of two, but for the last, which may have
  // fewer. The reduction tree is then a canonical tree over the nodes, and one over the members of each.
  bool nodes_are_subtrees() const { return tables_->nodes_are_subtrees; }
  // The *node leader*: the first member on `node`. It exchanges the control messages of the node: see Note
  // [Node graphs].
  int NodeLeader(int node) const { return MembersOf(node).front(); }
  // That of the caller's node. It keeps what the local ranks share: see Note [Arrivals].
  int node_leader() const { return NodeLeader(NodeOf(me())); }
  // Ranks of the group on the caller's node, with the caller.
  int local_size() const { return static_cast<int>(local_peers_.size()) + 1; }

  // Position of `member` among the group's ranks of its node.
  int IndexInNode(int member) const { return tables_->index_in_node[static_cast<size_t>(member)]; }

  // The *part leader* of `node` for `member`: the rank that sends or receives the member's part for its node.
  // Parts are dealt round robin to a node's ranks, so that each drives a share of the node's traffic. On the
  // member's own node it is the member.
  int PartLeader(int node, int member) const;

  bool AreInOneDomain(int a, int b) const { return DomainOf(a) == DomainOf(b); }
  // True if `member` is in the caller's share domain.
  bool IsInDomain(int member) const { return AreInOneDomain(member, me()); }
  // Ranks of the group in the caller's share domain, with the caller.
  int domain_size() const { return static_cast<int>(MembersOfDomain().size()); }
  // True if the group has ranks of several share domains on some node.
  bool spans_domains() const { return domains_hash() != 0; }
  // Hash of the domains of all members; 0 if each node has one.
  uint64_t domains_hash() const { return tables_->domains_hash; }
  // The maximal subtrees of the group's reduction tree that lie in one share domain each.
  const std::vector<NodeSubtree>& domain_subtrees() const { return tables_->domain_subtrees; }
  // The rank of the caller's domain that writes `member`'s part into an image that the domain shares: a rank
  // that has it, or else one that copies it from another domain of the node. Copies are dealt round robin.
  int DomainLeader(int member) const;

  // The rank of the caller's node in the same place of its node as `member`. REQUIRES: there is one.
  int LocalCounterpart(int member) const;

  // The maximal single-node subtrees of the group's reduction tree, with nodes numbered as above.
  const std::vector<NodeSubtree>& subtrees() const { return tables_->subtrees; }
  // The numbers of the subtrees of `node`, ascending.
  const std::vector<int>& SubtreesOf(int node) const {
    return tables_->subtrees_of_node[static_cast<size_t>(node)];
  }
  // Position of a subtree among those of its node.
  int SubtreeInNode(int index) const { return tables_->subtree_in_node[static_cast<size_t>(index)]; }
  // The member that sends to `target` the partial sum of the subtree with number `index`.
  int PartialSender(int index, int target) const;

 private:
  friend std::shared_ptr<const ReductionStages> StagesOf(const GroupPlacement& placement, int fan_in);
  int DomainOf(int member) const { return tables_->domain_of[static_cast<size_t>(member)]; }
  const std::vector<int>& MembersOfDomain() const {
    return tables_->in_domain[static_cast<size_t>(DomainOf(me()))];
  }

  ProcessGroup group_;
  std::shared_ptr<const Tables> tables_;
  std::vector<int> local_peers_;
  // The last result of StagesOf, and its fan-in. Every reduction of a lane needs the same one.
  mutable std::shared_ptr<const ReductionStages> stages_;
  mutable int stages_fan_in_ = 0;
};

}  // namespace weft
