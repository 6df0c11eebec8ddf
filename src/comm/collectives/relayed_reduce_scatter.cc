// Reduce-scatter between nodes by recursive halving. The first member of each node, its leader, acts for it.
// See Note [Relayed exchanges] and Note [Halving].
//
// The leader first adds the inputs of its node, and orders the parts by the reversed bits of their nodes'
// numbers. Each class of parts then lies end to end. In the end it has the parts of its own node, and writes
// them to the outputs of their ranks.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/reduce_phase.h"
#include "src/comm/phases/relay_rounds.h"
#include "src/comm/trees/halving.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
constexpr int kChannel = 0;

class RelayedReduceScatter final : public Collective, TaskOwner, WholeMove {
 public:
  RelayedReduceScatter(const GroupPlacement& placement, CollectivePlan plan, bool mirrored)
      : Collective(std::move(plan), SharingOf(placement)), mirrored_(mirrored) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (!LeadsNode(placement)) return absl::OkStatus();
    OrderParts(placement);
    WEFT_ASSIGN_OR_RETURN(sums_,
                          context.scratch.Acquire(static_cast<size_t>(first_.back()) * ElementBytes()));
    WEFT_RETURN_IF_ERROR(AddExchanges(context));
    AddOutputs(context);
    IssueSumOfNode(context);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (!LeadsNode(context.placement)) {
      if (has_result_ || !HasLeaderTold(context)) return false;
      has_result_ = true;
      return true;
    }
    WEFT_ASSIGN_OR_RETURN(bool advanced, receives_.Step(context));
    WEFT_ASSIGN_OR_RETURN(const bool exchanged, StepExchanges(context));
    advanced |= exchanged;
    if (has_result_ || !node_is_summed_ || !IsMerged(HalvingLevels(context.placement.node_count())))
      return advanced;
    has_result_ = true;
    for (CopyStream& output : outputs_) {
      advanced |= output.Step(context, kAll);
      has_result_ &= output.finished();
    }
    if (has_result_) TellNode(context);
    return advanced || has_result_;
  }
  bool MoveComplete() const override { return has_result_; }
  bool MoveDrained() const override {
    return has_result_ && std::all_of(exchanges_.begin(), exchanges_.end(),
                                      [](const Exchange& exchange) { return exchange.send.finished(); });
  }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    const GroupPlacement& placement = context.placement;
    if (!LeadsNode(placement)) {
      if (!has_result_) ranks.insert(placement.WorldRank(placement.node_host()));
      return;
    }
    receives_.AddAwaited(ranks);
    if (!ranks.empty()) return;
    for (const Exchange& exchange : exchanges_) {
      if (!exchange.send.finished()) ranks.insert(exchange.send.peer());
    }
  }

  void OnTaskDone(int64_t /*ticket*/) override { node_is_summed_ = true; }
  // Adds the inputs of the node, for the parts of one node after the other.
  void Run() const override {
    for (size_t place = 0; place < owners_.size(); ++place) {
      if (first_[place] == first_[place + 1]) continue;
      SumNode(owners_[place], At(sums_.data(), first_[place]), first_[place + 1] - first_[place]);
    }
  }

 private:
  // Elements of sums_.
  struct Range {
    int64_t begin;
    int64_t end;
    int64_t count() const { return end - begin; }
  };
  // An exchange, whose receive is in receives_.
  struct Exchange {
    int level;
    const ReceiveStream* received;
    SendStream send;
    ReduceStream merge;  // Of the kept class.
  };

  static int Node(const GroupPlacement& placement) { return placement.NodeOf(placement.me()); }
  // The leader reads the inputs of its node, and writes the outputs.
  static Sharing SharingOf(const GroupPlacement& placement) {
    return {.input = !LeadsNode(placement), .output = !LeadsNode(placement)};
  }

  size_t ElementBytes() const { return SizeOf(plan().dtype); }
  int64_t CountOf(int member) const { return plan().parts.counts[static_cast<size_t>(member)]; }
  int64_t OffsetOf(int member) const { return plan().parts.offsets[static_cast<size_t>(member)]; }
  std::byte* At(std::byte* buffer, int64_t element) const {
    return buffer + static_cast<size_t>(element) * ElementBytes();
  }

  // Places of nodes that do not exist have no elements.
  void OrderParts(const GroupPlacement& placement) {
    node_ = Node(placement);
    const int levels = HalvingLevels(placement.node_count());
    owners_.assign(size_t{1} << levels, {});
    for (int node = 0; node < placement.node_count(); ++node) {
      Owner& owner = owners_[static_cast<size_t>(FirstPlaceOfClass(node, levels))];
      owner.node = node;
      owner.begin = OffsetOf(placement.FirstMember(node));
      for (const int member : placement.MembersOf(node)) owner.count += CountOf(member);
    }
    first_ = {0};
    for (const Owner& owner : owners_) first_.push_back(first_.back() + owner.count);
  }
  Range RangeOf(int level, int number, int levels) const {
    const int place = FirstPlaceOfClass(number, levels);
    const int end = place + (1 << (levels - level - 1));
    return {first_[static_cast<size_t>(place)], first_[static_cast<size_t>(end)]};
  }

  absl::Status AddExchanges(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    const int levels = HalvingLevels(placement.node_count());
    const std::vector<HalvingExchange> exchanges = HalvingExchangesOf(node_, placement.node_count());
    int64_t received = 0;
    for (const HalvingExchange& exchange : exchanges)
      received += RangeOf(exchange.level, exchange.kept, levels).count();
    if (received > 0) {
      WEFT_ASSIGN_OR_RETURN(received_,
                            context.scratch.Acquire(static_cast<size_t>(received) * ElementBytes()));
    }
    int64_t own = 0;
    for (const int member : placement.MembersOf(node_)) own += CountOf(member);
    if (own > 0) {
      WEFT_ASSIGN_OR_RETURN(result_, context.scratch.Acquire(static_cast<size_t>(own) * ElementBytes()));
    }
    std::byte* next = received_.data();
    for (const HalvingExchange& exchange : exchanges) {
      const Range kept = RangeOf(exchange.level, exchange.kept, levels);
      // Between mirrored nodes, a rank gets what it sends.
      const Range sent = mirrored_ ? kept : RangeOf(exchange.level, exchange.sent, levels);
      AddExchange(context, exchange, {kept, sent, next, exchange.level == levels - 1});
      next = At(next, kept.count());
    }
    return absl::OkStatus();
  }

  struct Memory {
    Range kept;
    Range sent;
    std::byte* received;
    bool is_last;  // The merge gives the result.
  };
  void AddExchange(OperationContext& context, const HalvingExchange& exchange, const Memory& memory) {
    const size_t bytes = ElementBytes();
    const auto slicing = [&](const Range& range) {
      return Slicing{range.count(), SliceElements(context, plan().dtype)};
    };
    const SliceMemory kept{At(sums_.data(), memory.kept.begin), bytes};
    const SliceMemory sent{At(sums_.data(), memory.sent.begin), bytes};
    const SliceMemory received{memory.received, bytes};
    const auto source =
        exchange.level == 0 ? ReceiveStream::Source::kReady : ReceiveStream::Source::kProduced;
    const CreditScheduler::Channel channel = ChannelToLeader(context, exchange.peer, kChannel);
    const ReceiveStream& receive = receives_.Add(channel, slicing(memory.kept), received, source);
    ReduceTarget target{kept.base, plan().dtype};
    if (memory.is_last) target = TargetOf(context.placement, plan(), result_.data());
    target.nontemporal = false;
    std::vector<ReduceStream::Leaf> leaves = {{kept, plan().dtype}, {received, plan().dtype}};
    if (!exchange.keeps_left) std::swap(leaves[0], leaves[1]);
    exchanges_.push_back({exchange.level, &receive, SendStream(channel, slicing(memory.sent), sent),
                          ReduceStream(slicing(memory.kept), ReduceProgramOfRanks(0, 2), std::move(leaves),
                                       plan().reduce, std::move(target))});
  }

  void AddOutputs(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    const int64_t begin = OffsetOf(placement.FirstMember(node_));
    for (const int member : placement.MembersOf(node_)) {
      if (CountOf(member) == 0) continue;
      // The peer published its output for this rank to write to.
      auto* output = const_cast<std::byte*>(OutputOf(context, member));
      outputs_.emplace_back(Slicing{CountOf(member), SliceElements(context, plan().dtype)}, plan().dtype,
                            SliceMemory{At(result_.data(), OffsetOf(member) - begin), ElementBytes()},
                            SliceMemory{output, ElementBytes()}, /*nontemporal=*/false);
    }
  }

  void IssueSumOfNode(OperationContext& context) {
    const std::vector<int>& members = context.placement.MembersOf(node_);
    for (const int member : members) inputs_.push_back(InputOf(context, member));
    program_ = ReduceProgramOfRanks(0, static_cast<int>(inputs_.size()));
    const size_t bytes = static_cast<size_t>(first_.back()) * ElementBytes();
    context.tasks.Push({context.record, this, /*ticket=*/0, context.priority,
                        WholeMoveTask{this, {bytes, bytes * inputs_.size()}}});
  }

  // The parts of a node.
  struct Owner {
    int node = 0;
    int64_t begin = 0;  // In the inputs.
    int64_t count = 0;
  };
  void SumNode(const Owner& owner, std::byte* target, int64_t count) const {
    std::vector<LeafSource> leaves;
    leaves.reserve(inputs_.size());
    for (const std::byte* input : inputs_)
      leaves.push_back({input + static_cast<size_t>(owner.begin) * ElementBytes(), plan().dtype});
    RunReduce(program_, leaves, plan().reduce, {target, plan().dtype}, count);
  }

  // True if what exchanges below `level` keep is merged.
  bool IsMerged(int level) const {
    return std::all_of(exchanges_.begin(), exchanges_.end(), [level](const Exchange& exchange) {
      return exchange.level >= level || exchange.merge.finished();
    });
  }
  absl::StatusOr<bool> StepExchanges(OperationContext& context) {
    bool advanced = false;
    for (Exchange& exchange : exchanges_) {
      const bool holds =
          node_is_summed_ && (IsMerged(exchange.level) || !context.wire.rules().rounds_await_earlier_ones);
      WEFT_ASSIGN_OR_RETURN(const bool sent, exchange.send.Step(context, holds ? kAll : 0));
      advanced |= sent;
      if (holds && exchange.received->finished()) advanced |= exchange.merge.Step(context, kAll);
    }
    return advanced;
  }

  const bool mirrored_;
  // At the leader.
  int node_ = 0;
  std::vector<Owner> owners_;   // By place. See FirstPlaceOfClass.
  std::vector<int64_t> first_;  // By place: its first element in sums_. Ends with the number of elements.
  std::vector<const std::byte*> inputs_;
  ReduceProgram program_;  // Of the inputs.
  bool node_is_summed_ = false;
  Buffer sums_;
  Buffer received_;
  Buffer result_;  // The parts of the node.
  OrderedReceives receives_;
  std::deque<Exchange> exchanges_;  // Deques: tasks and transfers hold pointers to the streams.
  std::deque<CopyStream> outputs_;

  bool has_result_ = false;
};

}  // namespace

std::unique_ptr<Operation> MakeRelayedReduceScatter(const GroupPlacement& placement, CollectivePlan plan,
                                                    bool mirrored) {
  return std::make_unique<RelayedReduceScatter>(placement, std::move(plan), mirrored);
}

}  // namespace weft
