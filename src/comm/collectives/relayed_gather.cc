// All-gather between nodes that the first member of each node, its leader, relays in rounds. See Note
// [Relayed exchanges].
//
// The leader has a buffer that begins with the parts of its own node, followed by those of the next nodes. A
// round fills the next section of it. In the end the leader copies the parts to its output, from which the
// other ranks of the node copy them.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_phase.h"
#include "src/comm/phases/relay_rounds.h"
#include "src/comm/trees/relay_choice.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
constexpr int kDataChannel = 0;

class RelayedGather final : public Collective {
 public:
  RelayedGather(const GroupPlacement& placement, CollectivePlan plan, bool mirrored)
      : Collective(std::move(plan), SharingOf(placement)), mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (!LeadsNode(placement)) {
      AddCopy(context, OutputOf(context, placement.node_host()), plan().output, plan().parts.total());
      return absl::OkStatus();
    }
    const int nodes = placement.node_count();
    const int64_t elements = ElementsOfNextNodes(placement, nodes);
    WEFT_ASSIGN_OR_RETURN(parts_, context.scratch.Acquire(static_cast<size_t>(elements * ElementBytes())));
    AddRounds(context);
    int64_t packed = 0;
    for (const int member : placement.MembersOf(Node(placement))) {
      const int64_t count = plan().parts.counts[static_cast<size_t>(member)];
      AddCopy(context, InputOf(context, member), At(parts_.data(), packed), count);
      context.counters.copied_bytes += count * ElementBytes();
      packed += count;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (!LeadsNode(context.placement)) return has_result_ ? false : CopyFromLeader(context);
    const bool copied = StepCopies(context);
    WEFT_ASSIGN_OR_RETURN(const bool moved, rounds_.Step(context, /*ready=*/unpacks_ || AreCopied()));
    if (has_result_ || !AreCopied() || !rounds_.received()) return copied || moved;
    if (!std::exchange(unpacks_, true)) {
      Unpack(context);
    } else {
      has_result_ = true;
      TellNode(context);
    }
    return true;
  }
  bool MoveComplete() const override { return has_result_; }
  bool MoveDrained() const override { return has_result_ && rounds_.drained(); }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (LeadsNode(context.placement)) return rounds_.AddAwaited(ranks);
    if (!has_result_) ranks.insert(context.placement.WorldRank(context.placement.node_host()));
  }

 private:
  static int Node(const GroupPlacement& placement) { return placement.NodeOf(placement.me()); }
  // The leader reads the inputs of its node, whose other ranks read its output.
  static Sharing SharingOf(const GroupPlacement& placement) {
    return {.input = !LeadsNode(placement),
            .output = LeadsNode(placement) && !placement.local_peers().empty()};
  }

  int64_t ElementBytes() const { return static_cast<int64_t>(SizeOf(plan().dtype)); }
  std::byte* At(std::byte* buffer, int64_t element) const { return buffer + element * ElementBytes(); }
  int64_t Begin(const GroupPlacement& placement, int node) const {
    return plan().parts.offsets[static_cast<size_t>(placement.FirstMember(node))];
  }
  // Elements of the parts of `count` nodes, beginning with this rank's, in the order of the rounds.
  int64_t ElementsOfNextNodes(const GroupPlacement& placement, int count) const {
    const int end = Node(placement) + count;
    const int nodes = placement.node_count();
    if (mirrored_) {  // All nodes have parts of one size.
      int64_t elements = 0;
      for (const int member : placement.MembersOf(Node(placement)))
        elements += plan().parts.counts[static_cast<size_t>(member)];
      return count * elements;
    }
    const int64_t begin = Begin(placement, Node(placement));
    if (end < nodes) return Begin(placement, end) - begin;
    return plan().parts.total() - begin + (end == nodes ? 0 : Begin(placement, end - nodes));
  }

  void AddRounds(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    const int nodes = placement.node_count();
    const int64_t slice_elements = SliceElements(context, plan().dtype);
    const auto message = [&](int node, int first, int end) {
      const int64_t begin = ElementsOfNextNodes(placement, first);
      return RelayRounds::Message{ChannelToLeader(context, node % nodes, kDataChannel),
                                  {ElementsOfNextNodes(placement, end) - begin, slice_elements},
                                  {At(parts_.data(), begin), SizeOf(plan().dtype)}};
    };
    for (int distance = 1; distance < nodes; distance *= 2) {
      const int count = std::min(distance, nodes - distance);
      // Between mirrored nodes, what a rank sends to a node arrives as from that node.
      const int receiver = Node(placement) + (mirrored_ ? distance : nodes - distance);
      rounds_.Add(message(receiver, 0, count),
                  message(Node(placement) + distance, distance, distance + count));
    }
  }

  void AddCopy(OperationContext& context, const std::byte* source, std::byte* target, int64_t elements) {
    const size_t node_bytes = static_cast<size_t>(plan().parts.total() * ElementBytes()) *
                              (context.placement.local_peers().size() + 1);
    // SliceMemory has no const form. The source is only read.
    copies_.emplace_back(Slicing{elements, SliceElements(context, plan().dtype)}, plan().dtype,
                         SliceMemory{const_cast<std::byte*>(source), SizeOf(plan().dtype)},
                         SliceMemory{target, SizeOf(plan().dtype)}, ShouldBypassCaches(node_bytes));
  }
  bool StepCopies(OperationContext& context) {
    bool advanced = false;
    for (CopyStream& copy : copies_) advanced |= copy.Step(context, kAll);
    return advanced;
  }
  bool AreCopied() const {
    return std::all_of(copies_.begin(), copies_.end(),
                       [](const CopyStream& copy) { return copy.finished(); });
  }

  void Unpack(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    copies_.clear();
    const int64_t begin = Begin(placement, Node(placement));
    const int64_t to_end = mirrored_ ? ElementsOfNextNodes(placement, 1) : plan().parts.total() - begin;
    AddCopy(context, parts_.data(), At(plan().output, begin), to_end);
    AddCopy(context, At(parts_.data(), to_end), plan().output, begin);
    context.counters.copied_bytes += (to_end + begin) * ElementBytes();
  }

  bool CopyFromLeader(OperationContext& context) {
    if (!HasLeaderTold(context)) return false;
    const bool advanced = StepCopies(context);
    has_result_ = AreCopied();
    return advanced || has_result_;
  }

  const bool mirrored_;
  Buffer parts_;                   // At the leader.
  std::deque<CopyStream> copies_;  // A deque: tasks hold pointers to the streams.
  RelayRounds rounds_;
  bool unpacks_ = false;
  bool has_result_ = false;
};

}  // namespace

bool IsRelayed(const GroupPlacement& placement, const CollectivePlan& plan, int64_t elements,
               Relaying relaying) {
  if (relaying == Relaying::kNever || !placement.spans_nodes() || placement.spans_domains() ||
      !placement.nodes_are_consecutive() || elements == 0 || plan.parts.ranges != nullptr) {
    return false;
  }
  const int nodes = placement.node_count();
  const int64_t bytes = elements * static_cast<int64_t>(SizeOf(plan.dtype));
  if (bytes > kMaxRelayedBytes) return false;
  if (plan.kind == OpKind::kReduceScatter) {
    if (!placement.nodes_are_subtrees() || AccumulationDType(plan.dtype) != plan.dtype) return false;
    return relaying == Relaying::kAlways ||
           RelayedReduceScatterPays(nodes, static_cast<int>(placement.MembersOf(0).size()), bytes);
  }
  // Without other ranks on the nodes, a shared output is that of one rank.
  const bool is_private =
      plan.kind == OpKind::kAllGather || (plan.kind == OpKind::kAllGatherShared && placement.size() == nodes);
  return is_private && (relaying == Relaying::kAlways || RelayedGatherPays(nodes, bytes));
}

std::unique_ptr<Operation> MakeRelayedGather(const GroupPlacement& placement, CollectivePlan plan,
                                             bool mirrored) {
  return std::make_unique<RelayedGather>(placement, std::move(plan), mirrored);
}

}  // namespace weft
