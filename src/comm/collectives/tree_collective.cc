// Barrier of any group, and all-reduce of a few bytes over several nodes.
//
// Note [Tree collectives]
// Problem: a direct exchange takes as many messages per rank as there are nodes, for a few bytes.
// Rule: the first member on each node acts for it. It reads the inputs of the node's members, adds the
// partial sums that arrive from other nodes, each at its place in the canonical tree, and sends the sum to
// the node that has the parent. The result returns down a binomial tree over nodes. Data travels in control
// messages, without credits: a rank gets at most one message of an operation for each edge, and none of the
// next operation before it has sent its part of this one.
// Why it suffices: additions are those of Note [Canonical tree]. Partial sums of f16 and bf16 travel in fp32.
// A subtree of bf16 is rounded where the reduce phase rounds it: on every node but that of rank 0, which owns
// the only part. Each message has the descriptor of its sender. Every node sends to its parent in the tree of
// nodes, in a barrier as in a sum: a node whose sums go to others tells its parent that it has arrived. So
// two ranks that differ are compared somewhere, and the failure reaches all.
// Messages: if the ranks of each node form an aligned block of the group, a rank sends at most
// log2(nodes) + 1, rounded up. Other placements send one for each partial sum of a node. A barrier needs no
// sum, and takes the binomial tree in both directions in every placement.
// Sizes: an all-reduce of at most a cache line always takes the tree. One of up to
// CreditScheduler::kMaxPartialBytes takes it between so many nodes that it is faster than a direct exchange
// (TreePays). Relayed (Note [Relayed exchanges]), it would take about as long, but three times the CPU time:
// each message would have a credit, and each sum a task. Limits of the larger one: a node has one sum, one
// share domain, and inputs of at most 32 KiB, and numbers are not bf16, of which a direct exchange rounds
// each part for its own owner.
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_cat.h>

#include "src/comm/base/cache_line.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_kernel.h"
#include "src/comm/phases/reduce_phase.h"
#include "src/comm/trees/node_graph.h"
#include "src/comm/trees/relay_choice.h"
#include "src/comm/trees/tree_chains.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The edge of the result. A partial sum of T(lo, n) travels on edge `lo`, and the arrival of node k on edge
// 1 + k: BeginArrivals sends it only to a peer that gets no partial sum.
constexpr int kResultEdge = 0;
// Most bytes of the inputs of a node, which its leader adds in a poll.
constexpr int64_t kMostInputBytes = int64_t{32} * 1024;

// Dtype of partial sums in the tree.
DType SumDType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : PartialDType(dtype); }

class TreeCollective final : public Collective {
 public:
  TreeCollective(const GroupPlacement& placement, CollectivePlan&& plan, bool mirrored)
      : Collective(std::move(plan), {.input = !placement.local_peers().empty(),
                                     .output = !placement.local_peers().empty() && placement.spans_nodes()}),
        mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    leader_ = placement.NodeLeader(placement.NodeOf(placement.me()));
    if (!placement.spans_nodes()) has_result_ = true;
    if (leader_ != placement.me() || has_result_) return absl::OkStatus();
    if (elements() > 0) {
      for (const int member : placement.MembersOf(Node(context)))
        inputs_.emplace_back(member, CopyOf(InputOf(context, member)));
      for (TreeChain& chain : ChainsOfNode(placement, Node(context))) chains_.push_back({std::move(chain)});
    }
    return mirrored_ ? absl::OkStatus() : BeginArrivals(context);
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (has_result_) return false;
    if (context.placement.me() != leader_) return TakeResultOfLeader(context);
    if (mirrored_) return StepMirrored(context);
    WEFT_ASSIGN_OR_RETURN(const bool summed, elements() > 0 ? StepSums(context) : StepArrivals(context));
    WEFT_ASSIGN_OR_RETURN(const bool received, ReceiveResult(context));
    return summed || received;
  }
  bool MoveComplete() const override { return has_result_; }
  bool MoveDrained() const override { return has_result_; }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    const GroupPlacement& placement = context.placement;
    if (has_result_) return;
    if (placement.me() != leader_) {
      ranks.insert(placement.BootstrapRank(leader_));
      return;
    }
    for (const int peer : MissingPeers(context)) ranks.insert(peer);
    if (has_sent_up_ && ranks.empty()) ranks.insert(LeaderOf(context, TreeParent(Node(context))));
  }

 private:
  struct Chain {
    TreeChain tree;
    std::vector<std::byte> sum = {};  // Empty until it is known.
  };

  int64_t elements() const { return plan().kind == OpKind::kBarrier ? 0 : plan().parts.total(); }
  size_t input_bytes() const { return static_cast<size_t>(BytesOf(elements(), plan().dtype)); }
  std::vector<std::byte> CopyOf(const std::byte* input) const { return {input, input + input_bytes()}; }
  static std::string_view ViewOf(const std::vector<std::byte>& sum) {
    return {reinterpret_cast<const char*>(sum.data()), sum.size()};
  }
  static int Node(const OperationContext& context) {
    return context.placement.NodeOf(context.placement.me());
  }
  // Bootstrap rank of the first member on a node.
  static int LeaderOf(const OperationContext& context, int node) {
    return context.placement.BootstrapRank(context.placement.NodeLeader(node));
  }
  static int LeaderOfMember(const OperationContext& context, int member) {
    return LeaderOf(context, context.placement.NodeOf(member));
  }
  static const std::string* Arrived(const OperationContext& context, int peer, int edge) {
    return context.wire.PartialFrom(peer, context.record->lane, context.record->descriptor.sequence, edge);
  }
  static absl::Status Send(OperationContext& context, int peer, int edge, std::string_view payload) {
    return context.wire.SendPartial(peer, context.record->lane, edge, context.record->descriptor, payload);
  }
  // The edge on which a node tells its parent that its members have arrived.
  static int ArrivalEdge(int node) { return 1 + node; }

  // Bootstrap ranks whose partial sums or arrivals have not arrived yet.
  std::set<int> MissingPeers(const OperationContext& context) const {
    std::set<int> missing;
    for (const Chain& chain : chains_) {
      for (const TreeBranch& branch : chain.tree.branches) {
        const int peer = LeaderOfMember(context, branch.lo);
        if (!branch.is_local && Arrived(context, peer, branch.lo) == nullptr) missing.insert(peer);
      }
    }
    for (const int child : arriving_) {
      const int peer = LeaderOf(context, child);
      if (Arrived(context, peer, ArrivalEdge(child)) == nullptr) missing.insert(peer);
    }
    return missing;
  }
  bool HaveArrived(const OperationContext& context) const {
    return std::all_of(arriving_.begin(), arriving_.end(), [&](int child) {
      return Arrived(context, LeaderOf(context, child), ArrivalEdge(child)) != nullptr;
    });
  }

  // Chooses the children whose arrival this node awaits. A node whose sums go elsewhere tells its parent that
  // it has arrived, so that the tree of nodes connects different operations, too.
  absl::Status BeginArrivals(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    const int node = Node(context);
    for (const int child : TreeChildren(node, placement.node_count())) {
      if (elements() == 0 || !SendsSum(placement, child, node)) arriving_.push_back(child);
    }
    if (elements() == 0 || node == 0 || SendsSum(placement, node, TreeParent(node))) return absl::OkStatus();
    return Send(context, LeaderOf(context, TreeParent(node)), ArrivalEdge(node), {});
  }

  absl::StatusOr<bool> StepArrivals(OperationContext& context) {
    if (has_sent_up_) return false;
    if (context.wire.rules().partials_await_children && !HaveArrived(context)) return false;
    has_sent_up_ = true;
    const int node = Node(context);
    if (node == 0) return Finish(context, {});
    WEFT_RETURN_IF_ERROR(Send(context, LeaderOf(context, TreeParent(node)), ArrivalEdge(node), {}));
    return true;
  }

  absl::StatusOr<bool> StepSums(OperationContext& context) {
    if (has_sent_up_) return false;
    bool advanced = false;
    for (Chain& chain : chains_) {
      if (!chain.sum.empty()) continue;
      WEFT_ASSIGN_OR_RETURN(const bool is_evaluated, Evaluate(context, chain));
      if (!is_evaluated) continue;
      advanced = true;
      if (chain.tree.parent < 0 || context.placement.IsLocal(chain.tree.parent)) continue;
      WEFT_RETURN_IF_ERROR(
          Send(context, LeaderOfMember(context, chain.tree.parent), chain.tree.lo, ViewOf(chain.sum)));
    }
    const bool has_sums =
        std::all_of(chains_.begin(), chains_.end(), [](const Chain& chain) { return !chain.sum.empty(); });
    if (!has_sums) return advanced;
    if (Node(context) > 0) {
      has_sent_up_ = true;
      return advanced;
    }
    return HaveArrived(context) ? Finish(context, ViewOf(chains_.back().sum)) : advanced;
  }

  // Computes the sum of a chain. False if a partial sum is missing.
  absl::StatusOr<bool> Evaluate(const OperationContext& context, Chain& chain) {
    const TreeChain& tree = chain.tree;
    const DType sum_dtype = SumDType(plan().dtype);
    absl::InlinedVector<LeafSource, 16> sums;
    for (const TreeBranch& branch : tree.branches) {
      WEFT_ASSIGN_OR_RETURN(const std::byte* const sum, SumOf(context, branch));
      if (sum == nullptr) return false;
      sums.push_back({sum, sum_dtype});
    }
    std::vector<LeafSource> leaves;
    for (const auto& [member, input] : inputs_) leaves.push_back({input.data(), plan().dtype});
    const auto first_branch = static_cast<int>(leaves.size());
    leaves.insert(leaves.end(), sums.begin(), sums.end());
    std::vector<std::byte> rounded;
    if (tree.own_count > 1 && tree.lo > 0 && sum_dtype != PartialDType(plan().dtype) &&
        !context.placement.IsLocal(0)) {
      rounded.resize(input_bytes());
      Reduce(BuildReduceProgram(tree.lo, tree.own_count,
                                [&](int lo, int n) { return n == 1 ? LeafOf(lo) : -1; }),
             leaves, {rounded.data(), plan().dtype});
      leaves.push_back({rounded.data(), plan().dtype});
    }
    const int own_leaf = rounded.empty() ? -1 : static_cast<int>(leaves.size()) - 1;
    const ReduceProgram program = BuildReduceProgram(tree.lo, tree.count, [&](int lo, int n) {
      if (lo == tree.lo && n == tree.own_count && own_leaf >= 0) return own_leaf;
      if (lo < tree.lo + tree.own_count) return n == 1 ? LeafOf(lo) : -1;
      const auto found = std::find_if(tree.branches.begin(), tree.branches.end(),
                                      [lo](const TreeBranch& branch) { return branch.lo == lo; });
      return first_branch + static_cast<int>(found - tree.branches.begin());
    });
    ReduceTarget target{nullptr, sum_dtype};
    if (tree.parent < 0) {
      target = TargetOf(context.placement, plan(), nullptr);
      target.nontemporal = false;
    }
    chain.sum.resize(static_cast<size_t>(BytesOf(elements(), target.dtype)));
    target.data = chain.sum.data();
    Reduce(program, leaves, target);
    return true;
  }
  int LeafOf(int member) const {
    const auto found = std::find_if(inputs_.begin(), inputs_.end(),
                                    [member](const auto& input) { return input.first == member; });
    return static_cast<int>(found - inputs_.begin());
  }
  void Reduce(const ReduceProgram& program, const std::vector<LeafSource>& leaves,
              const ReduceTarget& target) const {
    RunReduce(program, leaves, plan().reduce, target, elements());
  }
  // Null: it has not arrived.
  absl::StatusOr<const std::byte*> SumOf(const OperationContext& context, const TreeBranch& branch) const {
    if (!branch.is_local) {
      const int leader = LeaderOfMember(context, branch.lo);
      const std::string* sum = Arrived(context, leader, branch.lo);
      if (sum == nullptr) return nullptr;
      const size_t bytes = static_cast<size_t>(BytesOf(elements(), SumDType(plan().dtype)));
      WEFT_RETURN_IF_ERROR(CheckSize(context, leader, *sum, bytes));
      return reinterpret_cast<const std::byte*>(sum->data());
    }
    const auto found = std::find_if(chains_.begin(), chains_.end(),
                                    [&](const Chain& chain) { return chain.tree.lo == branch.lo; });
    return found->sum.empty() ? nullptr : found->sum.data();
  }

  // Messages of other operations do not come here: FindMismatch reports them.
  static absl::Status CheckSize(const OperationContext& context, int rank, std::string_view message,
                                size_t bytes) {
    if (message.size() == bytes) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("rank ", rank, " has sent ", message.size(),
                                            " bytes for a sum of ", bytes, " in ", Describe(*context.record),
                                            kSameVersionRemedy));
  }

  absl::StatusOr<bool> ReceiveResult(OperationContext& context) {
    if (has_result_ || Node(context) == 0 || !HaveArrived(context)) return false;
    const int parent = LeaderOf(context, TreeParent(Node(context)));
    const std::string* result = Arrived(context, parent, kResultEdge);
    if (result == nullptr) return false;
    WEFT_RETURN_IF_ERROR(CheckSize(context, parent, *result, input_bytes()));
    return Finish(context, *result);
  }

  // Stores the result, and tells the local peers and the children of the node.
  absl::StatusOr<bool> Finish(OperationContext& context, std::string_view result) {
    has_result_ = true;
    if (!result.empty()) std::memcpy(plan().output, result.data(), result.size());
    context.AnnounceToLocalPeers(/*index=*/0, 1);
    if (mirrored_) return true;
    for (const int child : TreeChildren(Node(context), context.placement.node_count()))
      WEFT_RETURN_IF_ERROR(Send(context, LeaderOf(context, child), kResultEdge, result));
    return true;
  }

  bool TakeResultOfLeader(OperationContext& context) {
    if (context.CounterOf(leader_, /*index=*/0) == 0) return false;
    if (input_bytes() > 0) std::memcpy(plan().output, OutputOf(context, leader_), input_bytes());
    return has_result_ = true;
  }

  // See Note [Mirrored nodes]: only node 0 runs, and gets what it sends. It takes as many messages one after
  // the other as the longest way up and down the trees.
  absl::StatusOr<bool> StepMirrored(OperationContext& context) {
    const auto levels =
        static_cast<unsigned>(std::bit_width(static_cast<unsigned>(context.placement.node_count() - 1)));
    bool advanced = false;
    while (mirrored_steps_ < 2 * levels) {
      const int peer = LeaderOf(context, 1 << (mirrored_steps_ % levels));
      const int edge = 1 + static_cast<int>(mirrored_steps_);
      if (!std::exchange(mirrored_sent_, true)) {
        WEFT_RETURN_IF_ERROR(Send(context, peer, edge, {}));
        advanced = true;
      }
      if (Arrived(context, peer, edge) == nullptr) return advanced;
      mirrored_sent_ = false;
      ++mirrored_steps_;
      advanced = true;
    }
    const std::vector<std::byte> own = elements() > 0 ? inputs_.front().second : std::vector<std::byte>();
    return Finish(context, {reinterpret_cast<const char*>(own.data()), own.size()});
  }

  const bool mirrored_;
  int leader_ = 0;  // The first member on this node.
  // At the leader.
  std::vector<std::pair<int, std::vector<std::byte>>> inputs_;  // Of the node's members, with their numbers.
  std::deque<Chain> chains_;
  std::vector<int> arriving_;  // Nodes whose arrival is awaited.
  bool has_sent_up_ = false;
  unsigned mirrored_steps_ = 0;
  bool mirrored_sent_ = false;

  bool has_result_ = false;
};

}  // namespace

bool TakesTree(const GroupPlacement& placement, DType dtype, int64_t count, Relaying relaying) {
  if (!placement.spans_nodes()) return false;
  // AllReduceCounts never splits a cache line.
  if (count <= static_cast<int64_t>(kLineBytes / SizeOf(dtype))) return true;
  constexpr auto kMost = static_cast<int64_t>(CreditScheduler::kMaxPartialBytes);
  if (relaying == Relaying::kNever || dtype == DType::kBF16 || !placement.nodes_are_subtrees() ||
      placement.spans_domains() || count > kMost / static_cast<int64_t>(SizeOf(SumDType(dtype)))) {
    return false;
  }
  const auto members = static_cast<int64_t>(placement.MembersOf(0).size());
  if (BytesOf(members * count, dtype) > kMostInputBytes) return false;
  return relaying == Relaying::kAlways || TreePays(placement.node_count());
}

std::unique_ptr<Operation> MakeTreeCollective(const GroupPlacement& placement, CollectivePlan&& plan,
                                              bool mirrored) {
  return std::make_unique<TreeCollective>(placement, std::move(plan), mirrored);
}

}  // namespace weft
