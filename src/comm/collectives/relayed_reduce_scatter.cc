// Reduce-scatter between nodes that the first member of each node, its leader, relays along trees. See Note
// [Relayed exchanges].
//
// The leader of the node of rank 0 gets the result of the whole buffer. Every other leader gets the parts of
// its subtree of the tree of nodes, passes those of its children on, and writes the parts of its node to the
// outputs of their ranks.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_phase.h"
#include "src/comm/phases/relay_rounds.h"
#include "src/comm/trees/node_graph.h"
#include "src/comm/trees/relay_choice.h"
#include "src/comm/trees/tree_chains.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

constexpr int kPartsChannel = 0;
// The channel of the sum that begins with a rank, from its node.
int SumChannel(const GroupPlacement& placement, int lo) { return 1 + placement.IndexInNode(lo); }

// A range of the elements of the whole buffer, and its memory.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  std::byte* data = nullptr;  // Element `begin`.
};

class RelayedReduceScatter final : public Collective {
 public:
  RelayedReduceScatter(const GroupPlacement& placement, CollectivePlan plan, bool mirrored)
      : Collective(std::move(plan), SharingOf(placement)), mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (!Leads(placement)) return absl::OkStatus();
    if (mirrored_) return AddMirroredRounds(context);
    for (TreeChain& tree : ChainsOfNode(placement, Node(placement))) chains_.emplace_back(std::move(tree));
    WEFT_RETURN_IF_ERROR(AddReceivedSums(context));
    for (Chain& chain : chains_) WEFT_RETURN_IF_ERROR(AddSum(context, chain));
    return AddParts(context);
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (!Leads(context.placement)) return TakeResultOfLeader(context);
    WEFT_ASSIGN_OR_RETURN(const bool moved, mirrored_ ? rounds_.Step(context, /*ready=*/true) : StepTrees(context));
    if (has_result_ || !HasParts()) return moved;
    const bool copied = StepOutputs(context);
    if (!has_result_) return moved || copied;
    Announce(context);
    return true;
  }
  bool MoveComplete() const override { return has_result_; }
  bool MoveDrained() const override {
    const auto is_finished = [](const SendStream& send) { return send.finished(); };
    return has_result_ && (!mirrored_ || rounds_.drained()) &&
           std::all_of(sent_parts_.begin(), sent_parts_.end(), is_finished) &&
           std::all_of(chains_.begin(), chains_.end(),
                       [&](const Chain& chain) { return !chain.send || is_finished(*chain.send); });
  }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    const GroupPlacement& placement = context.placement;
    if (!Leads(placement)) {
      if (!has_result_) ranks.insert(placement.WorldRank(placement.node_host()));
      return;
    }
    if (mirrored_) return rounds_.AddAwaited(ranks);
    const auto add = [&](const SendStream& send) {
      if (!send.finished()) ranks.insert(send.peer());
    };
    receives_.AddAwaited(ranks);
    for (const Chain& chain : chains_) {
      if (chain.send && chain.is_known()) add(*chain.send);
    }
    if (!ranks.empty()) return;
    for (const SendStream& send : sent_parts_) add(send);
  }

 private:
  // The sum of a chain.
  struct Chain {
    explicit Chain(TreeChain chain) : tree(std::move(chain)) {}

    TreeChain tree;
    std::vector<std::byte*> branch_sums;      // By branch. That of a local chain is set when it is added.
    std::vector<const ReceiveStream*> awaited;  // Sums of other nodes.
    Buffer memory;
    Buffer rounded_memory;
    std::optional<ReduceStream> rounded;  // The sum of the maximal subtree, as a direct exchange sends it.
    std::deque<ReduceStream> sums;        // Each of a range of the buffer.
    std::optional<SendStream> send;

    bool is_known() const {
      return std::all_of(sums.begin(), sums.end(), [](const ReduceStream& sum) { return sum.finished(); });
    }
  };

  static int Node(const GroupPlacement& placement) { return placement.NodeOf(placement.me()); }
  static bool Leads(const GroupPlacement& placement) { return placement.node_host() == placement.me(); }
  // The leader reads the inputs of its node, and writes the outputs.
  static Sharing SharingOf(const GroupPlacement& placement) {
    return {.input = !Leads(placement), .output = !Leads(placement)};
  }

  int64_t elements() const { return plan().parts.total(); }
  size_t ElementBytes() const { return SizeOf(plan().dtype); }
  DType sum_dtype() const { return AccumulationDType(plan().dtype); }
  int64_t CountOf(int member) const { return plan().parts.counts[static_cast<size_t>(member)]; }
  // The first element of the parts of a node, or of those after the last node.
  int64_t Begin(const GroupPlacement& placement, int node) const {
    if (node >= placement.node_count()) return elements();
    return plan().parts.offsets[static_cast<size_t>(placement.FirstMember(node))];
  }
  // The end of the parts of the nodes in the subtree of `node`, which is not 0.
  int64_t EndOfSubtree(const GroupPlacement& placement, int node) const {
    return Begin(placement, node + (node & -node));
  }
  SliceMemory MemoryOf(std::byte* data) const { return {data, ElementBytes()}; }

  // Receives of sums: the smallest subtrees first.
  absl::Status AddReceivedSums(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    struct Received {
      Chain* chain;
      size_t branch;
      int count;
    };
    std::vector<Received> received;
    for (Chain& chain : chains_) {
      chain.branch_sums.resize(chain.tree.branches.size());
      for (size_t branch = 0; branch < chain.tree.branches.size(); ++branch) {
        const TreeBranch& tree = chain.tree.branches[branch];
        if (!tree.is_local) received.push_back({&chain, branch, tree.count});
      }
    }
    if (received.empty()) return absl::OkStatus();
    std::stable_sort(received.begin(), received.end(),
                     [](const Received& a, const Received& b) { return a.count < b.count; });
    const size_t stride = RoundUpToCacheLine(static_cast<size_t>(elements()) * SizeOf(sum_dtype()));
    WEFT_ASSIGN_OR_RETURN(received_sums_, context.scratch.Acquire(received.size() * stride));
    std::byte* next = received_sums_.data();
    for (const auto& [chain, branch, count] : received) {
      const int lo = chain->tree.branches[branch].lo;
      chain->branch_sums[branch] = next;
      chain->awaited.push_back(&receives_.Add(
          ChannelToLeader(context, placement.NodeOf(lo), SumChannel(placement, lo)),
          {elements(), SliceElements(context, sum_dtype())}, {next, SizeOf(sum_dtype())}));
      next += stride;
    }
    return absl::OkStatus();
  }

  // REQUIRES: the chains whose sums it needs have been added.
  absl::Status AddSum(OperationContext& context, Chain& chain) {
    const GroupPlacement& placement = context.placement;
    const bool is_result = chain.tree.parent < 0;
    ReduceTarget target{nullptr, sum_dtype()};
    if (is_result) target = TargetOf(placement, plan(), nullptr);
    target.nontemporal = false;
    const size_t bytes = static_cast<size_t>(elements()) * SizeOf(target.dtype);
    WEFT_ASSIGN_OR_RETURN(chain.memory, context.scratch.Acquire(bytes));
    for (size_t branch = 0; branch < chain.tree.branches.size(); ++branch) {
      if (chain.tree.branches[branch].is_local)
        chain.branch_sums[branch] = ChainAt(chain.tree.branches[branch].lo).memory.data();
    }
    const Range whole{0, elements(), chain.memory.data()};
    if (chain.tree.own_count == 1 || PartialDType(plan().dtype) == sum_dtype()) {
      AddRange(context, chain, whole, target, /*own_is_rounded=*/false);
    } else {
      WEFT_RETURN_IF_ERROR(AddRounded(context, chain));
      const int64_t begin = Begin(placement, Node(placement));
      const int64_t end = Begin(placement, Node(placement) + 1);
      AddRange(context, chain, SubRange(whole, 0, begin, target.dtype), target, /*own_is_rounded=*/true);
      AddRange(context, chain, SubRange(whole, begin, end, target.dtype), target, /*own_is_rounded=*/false);
      AddRange(context, chain, SubRange(whole, end, elements(), target.dtype), target,
               /*own_is_rounded=*/true);
    }
    if (is_result) {
      parts_ = whole;
    } else if (!placement.IsLocal(chain.tree.parent)) {
      chain.send.emplace(ChannelToLeader(context, placement.NodeOf(chain.tree.parent),
                                         SumChannel(placement, chain.tree.lo)),
                         Slicing{elements(), SliceElements(context, sum_dtype())},
                         SliceMemory{chain.memory.data(), SizeOf(sum_dtype())});
    }
    return absl::OkStatus();
  }
  Chain& ChainAt(int lo) {
    return *std::find_if(chains_.begin(), chains_.end(),
                         [lo](const Chain& chain) { return chain.tree.lo == lo; });
  }
  static Range SubRange(const Range& range, int64_t begin, int64_t end, DType dtype) {
    return {begin, end, range.data + static_cast<size_t>(begin - range.begin) * SizeOf(dtype)};
  }

  absl::Status AddRounded(OperationContext& context, Chain& chain) {
    WEFT_ASSIGN_OR_RETURN(chain.rounded_memory,
                          context.scratch.Acquire(static_cast<size_t>(elements()) * ElementBytes()));
    chain.rounded.emplace(Slicing{elements(), SliceElements(context, plan().dtype)},
                          ReduceProgramOfRanks(chain.tree.lo, chain.tree.own_count),
                          LeavesOfRanks(context, chain.tree, 0), plan().reduce,
                          ReduceTarget{chain.rounded_memory.data(), plan().dtype});
    chain.rounded->CountCrossing(context);
    return absl::OkStatus();
  }
  // The inputs of the ranks of the maximal subtree, from element `begin` on.
  std::vector<ReduceStream::Leaf> LeavesOfRanks(const OperationContext& context, const TreeChain& tree,
                                                int64_t begin) const {
    std::vector<ReduceStream::Leaf> leaves;
    for (int member = tree.lo; member < tree.lo + tree.own_count; ++member) {
      auto* input = const_cast<std::byte*>(InputOf(context, member));
      leaves.push_back({MemoryOf(input + static_cast<size_t>(begin) * ElementBytes()), plan().dtype,
                        !context.placement.IsInDomain(member)});
    }
    return leaves;
  }
  // Adds the sum of a range of the buffer.
  void AddRange(OperationContext& context, Chain& chain, const Range& range, ReduceTarget target,
                bool own_is_rounded) {
    if (range.begin == range.end) return;
    const TreeChain& tree = chain.tree;
    std::vector<ReduceStream::Leaf> leaves;
    if (own_is_rounded) {
      leaves.push_back({MemoryOf(chain.rounded_memory.data() + static_cast<size_t>(range.begin) * ElementBytes()),
                        plan().dtype});
    } else {
      leaves = LeavesOfRanks(context, tree, range.begin);
    }
    const auto first_branch = static_cast<int>(leaves.size());
    const size_t sum_bytes = SizeOf(sum_dtype());
    for (std::byte* sum : chain.branch_sums)
      leaves.push_back({{sum + static_cast<size_t>(range.begin) * sum_bytes, sum_bytes}, sum_dtype()});
    target.data = range.data;
    ReduceProgram program = ProgramOfChain(tree, own_is_rounded ? 0 : -1, first_branch,
                                           [&](int member) { return member - tree.lo; });
    chain.sums
        .emplace_back(Slicing{range.end - range.begin, SliceElements(context, sum_dtype())},
                      std::move(program), std::move(leaves), plan().reduce, std::move(target))
        .CountCrossing(context);
  }

  // Adds the messages with parts.
  absl::Status AddParts(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    const int node = Node(placement);
    const int64_t slice_elements = SliceElements(context, plan().dtype);
    if (node > 0) {
      parts_ = {Begin(placement, node), EndOfSubtree(placement, node), nullptr};
      const int64_t count = parts_.end - parts_.begin;
      if (count > 0) {
        WEFT_ASSIGN_OR_RETURN(received_parts_,
                              context.scratch.Acquire(static_cast<size_t>(count) * ElementBytes()));
        parts_.data = received_parts_.data();
      }
      receives_.Add(ChannelToLeader(context, TreeParent(node), kPartsChannel), {count, slice_elements},
                    MemoryOf(parts_.data));
    }
    for (const int child : TreeChildren(node, placement.node_count())) {
      const Range range =
          SubRange(parts_, Begin(placement, child), EndOfSubtree(placement, child), plan().dtype);
      sent_parts_.emplace_back(ChannelToLeader(context, child, kPartsChannel),
                               Slicing{range.end - range.begin, slice_elements}, MemoryOf(range.data));
    }
    AddOutputs(context, [&](int member) {
      return SubRange(parts_, plan().parts.offsets[static_cast<size_t>(member)], 0, plan().dtype).data;
    });
    return absl::OkStatus();
  }
  template <typename PartOf>
  void AddOutputs(OperationContext& context, const PartOf& part_of) {
    const GroupPlacement& placement = context.placement;
    for (const int member : placement.MembersOf(Node(placement))) {
      if (CountOf(member) == 0) continue;
      // The peer published its output for this rank to write to.
      auto* output = const_cast<std::byte*>(OutputOf(context, member));
      outputs_.emplace_back(Slicing{CountOf(member), SliceElements(context, plan().dtype)}, plan().dtype,
                            MemoryOf(part_of(member)), MemoryOf(output), /*nontemporal=*/false);
      if (placement.IsInDomain(member)) continue;
      outputs_.back().SetCrossesDomains();
      context.counters.cross_domain_bytes += CountOf(member) * static_cast<int64_t>(ElementBytes());
    }
  }

  absl::StatusOr<bool> StepTrees(OperationContext& context) {
    WEFT_ASSIGN_OR_RETURN(bool advanced, receives_.Step(context));
    bool all_known = true;
    for (Chain& chain : chains_) {
      // A chain comes after those whose sums it needs.
      if (all_known) advanced |= StepSum(context, chain);
      all_known &= chain.is_known();
      if (!chain.send) continue;
      WEFT_ASSIGN_OR_RETURN(const bool sent, chain.send->Step(context, chain.is_known() ? kAll : 0));
      advanced |= sent;
    }
    for (SendStream& send : sent_parts_) {
      WEFT_ASSIGN_OR_RETURN(const bool sent, send.Step(context, HasParts() ? kAll : 0));
      advanced |= sent;
    }
    return advanced;
  }
  static bool StepSum(OperationContext& context, Chain& chain) {
    bool advanced = chain.rounded && chain.rounded->Step(context, kAll);
    if (chain.rounded && !chain.rounded->finished()) return advanced;
    const auto has_arrived = [](const ReceiveStream* sum) { return sum->finished(); };
    if (!std::all_of(chain.awaited.begin(), chain.awaited.end(), has_arrived)) return advanced;
    for (ReduceStream& sum : chain.sums) advanced |= sum.Step(context, kAll);
    return advanced;
  }
  // The parts of this node and of its children in the tree are in parts_.
  bool HasParts() const {
    if (mirrored_) return rounds_.received();
    return receives_.all_finished() &&
           std::all_of(chains_.begin(), chains_.end(), [](const Chain& chain) { return chain.is_known(); });
  }

  bool StepOutputs(OperationContext& context) {
    bool advanced = false;
    has_result_ = true;
    for (CopyStream& output : outputs_) {
      advanced |= output.Step(context, kAll);
      has_result_ &= output.finished();
    }
    return advanced;
  }
  static void Announce(OperationContext& context) {
    if (context.placement.local_peers().empty()) return;
    context.node.SetCounter(context.record->lane, context.record->descriptor.sequence, /*index=*/0, 1);
    for (const int peer : context.placement.local_peers())
      context.node.Ring(context.placement.WorldRank(peer));
  }
  bool TakeResultOfLeader(const OperationContext& context) {
    if (has_result_) return false;
    const int leader = context.placement.WorldRank(context.placement.node_host());
    const OperationRecord& record = *context.record;
    has_result_ = context.node.Counter(record.lane, leader, record.descriptor.sequence, /*index=*/0) != 0;
    return has_result_;
  }

  // See Note [Mirrored nodes]: node 0 gets what it sends. It takes as many messages one after the other as the
  // longest way up and down the trees. Parts of all nodes have one size.
  absl::Status AddMirroredRounds(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    const int nodes = placement.node_count();
    int64_t node_elements = 0;
    for (const int member : placement.MembersOf(Node(placement))) node_elements += CountOf(member);
    const int64_t sum_bytes = nodes * node_elements * static_cast<int64_t>(SizeOf(sum_dtype()));
    WEFT_ASSIGN_OR_RETURN(received_parts_, context.scratch.Acquire(2 * static_cast<size_t>(sum_bytes)));
    const auto add = [&](int distance, int channel, int64_t count, DType dtype) {
      const Slicing slicing{count, SliceElements(context, dtype)};
      RelayRounds::Message message{ChannelToLeader(context, distance, channel),
                                   slicing,
                                   {received_parts_.data(), SizeOf(dtype)}};
      const RelayRounds::Message sent = message;
      message.memory.base += sum_bytes;
      rounds_.Add(sent, message);
    };
    for (int distance = 1; distance < nodes; distance *= 2)
      add(distance, SumChannel(placement, 0), nodes * node_elements, sum_dtype());
    for (int distance = 1; distance < nodes; distance *= 2)
      add(distance, kPartsChannel, std::min(distance, nodes - distance) * node_elements, plan().dtype);
    AddOutputs(context, [&](int) { return received_parts_.data(); });
    return absl::OkStatus();
  }

  const bool mirrored_;
  // At the leader.
  std::deque<Chain> chains_;  // Deques: tasks and transfers hold pointers to the streams.
  OrderedReceives receives_;
  Buffer received_sums_;
  Buffer received_parts_;
  Range parts_;
  std::deque<SendStream> sent_parts_;
  std::deque<CopyStream> outputs_;
  RelayRounds rounds_;  // Between mirrored nodes, instead of the trees.

  bool has_result_ = false;
};

}  // namespace

std::unique_ptr<Operation> MakeRelayedReduceScatter(const GroupPlacement& placement, CollectivePlan plan,
                                                    bool mirrored) {
  return std::make_unique<RelayedReduceScatter>(placement, std::move(plan), mirrored);
}

}  // namespace weft
