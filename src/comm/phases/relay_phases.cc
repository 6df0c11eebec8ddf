#include "src/comm/phases/relay_phases.h"

#include <algorithm>
#include <utility>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {
namespace {

int NodeOfThisRank(const GroupPlacement& placement) { return placement.NodeOf(placement.me()); }

// First element of the parts of a node in the buffer of all parts, and their number. Members are consecutive.
int64_t BeginOf(const PartLayout& parts, const std::vector<int>& members) {
  return parts.offsets[static_cast<size_t>(members.front())];
}
int64_t CountOf(const PartLayout& parts, const std::vector<int>& members) {
  const auto last = static_cast<size_t>(members.back());
  return parts.offsets[last] + parts.counts[last] - BeginOf(parts, members);
}

// See Note [Relayed exchanges], mismatches.
bool SkipsEmpty(const CollectivePlan& plan) { return plan.kind == OpKind::kAllReduce; }

}  // namespace

HalvingPhase::HalvingPhase(const GroupPlacement& placement, const CollectivePlan& plan,
                           int64_t slice_elements, Memory memory)
    : plan_(plan),
      slice_elements_(slice_elements),
      memory_(std::move(memory)),
      levels_(HalvingLevels(placement.node_count())),
      program_(ReduceProgramOfRanks(0, static_cast<int>(memory_.inputs.size()))),
      owners_(size_t{1} << levels_),  // Places of nodes that do not exist have no elements.
      first_({0}) {
  for (int node = 0; node < placement.node_count(); ++node) {
    const std::vector<int>& members = placement.MembersOf(node);
    owners_[static_cast<size_t>(FirstPlaceOfClass(node, levels_))] = {BeginOf(plan.parts, members),
                                                                      CountOf(plan.parts, members)};
  }
  for (const Owner& owner : owners_) first_.push_back(first_.back() + owner.count);
}

absl::StatusOr<std::unique_ptr<HalvingPhase>> HalvingPhase::Create(OperationContext& context,
                                                                   const CollectivePlan& plan,
                                                                   int64_t slice_elements, Memory memory,
                                                                   int channel, bool mirrored) {
  std::unique_ptr<HalvingPhase> phase(
      new HalvingPhase(context.placement, plan, slice_elements, std::move(memory)));
  const size_t bytes = static_cast<size_t>(phase->first_.back()) * phase->ElementBytes();
  WEFT_ASSIGN_OR_RETURN(phase->sums_, context.scratch.Acquire(bytes));
  WEFT_RETURN_IF_ERROR(phase->AddExchanges(context, NodeOfThisRank(context.placement), channel, mirrored));
  phase->IssueSumOfNode(context);
  return phase;
}

HalvingPhase::Range HalvingPhase::RangeOf(int level, int number) const {
  const int place = FirstPlaceOfClass(number, levels_);
  const int end = place + (1 << (levels_ - level - 1));
  return {first_[static_cast<size_t>(place)], first_[static_cast<size_t>(end)]};
}

absl::Status HalvingPhase::AddExchanges(OperationContext& context, int node, int channel, bool mirrored) {
  const std::vector<HalvingExchange> exchanges = HalvingExchangesOf(node, context.placement.node_count());
  int64_t received = 0;
  for (const HalvingExchange& exchange : exchanges)
    received += RangeOf(exchange.level, exchange.kept).count();
  if (received > 0) {
    WEFT_ASSIGN_OR_RETURN(received_, context.scratch.Acquire(static_cast<size_t>(received) * ElementBytes()));
  }
  std::byte* next = received_.data();
  for (const HalvingExchange& exchange : exchanges) {
    const Range kept = RangeOf(exchange.level, exchange.kept);
    // Between mirrored nodes, a rank gets what it sends.
    const Range sent = mirrored ? kept : RangeOf(exchange.level, exchange.sent);
    if (SkipsEmpty(plan_) && kept.count() == 0 && sent.count() == 0) continue;
    ReduceTarget target{At(sums_.data(), kept.begin), plan_.dtype};
    if (exchange.level == levels_ - 1) target = TargetOf(context.placement, plan_, memory_.result);
    target.nontemporal = false;
    AddExchange(ChannelToLeader(context, exchange.peer, channel), exchange,
                {kept, sent, next, std::move(target)});
    next = At(next, kept.count());
  }
  return absl::OkStatus();
}

void HalvingPhase::AddExchange(const CreditScheduler::Channel& channel, const HalvingExchange& exchange,
                               ExchangeMemory memory) {
  const Slicing kept_slices{memory.kept.count(), slice_elements_};
  const SliceMemory kept{At(sums_.data(), memory.kept.begin), ElementBytes()};
  const SliceMemory sent{At(sums_.data(), memory.sent.begin), ElementBytes()};
  const SliceMemory received{memory.received, ElementBytes()};
  const auto source = exchange.level == 0 ? ReceiveStream::Source::kReady : ReceiveStream::Source::kProduced;
  const bool skips_empty = SkipsEmpty(plan_);
  const ReceiveStream* receive = nullptr;
  if (!skips_empty || memory.kept.count() > 0)
    receive = &receives_.Add(channel, kept_slices, received, source);
  std::optional<SendStream> send;
  if (!skips_empty || memory.sent.count() > 0)
    send.emplace(channel, Slicing{memory.sent.count(), slice_elements_}, sent);
  std::vector<ReduceStream::Leaf> leaves = {{kept, plan_.dtype}, {received, plan_.dtype}};
  if (!exchange.keeps_left) std::swap(leaves[0], leaves[1]);
  exchanges_.push_back({exchange.level, receive, std::move(send),
                        ReduceStream(kept_slices, ReduceProgramOfRanks(0, 2), std::move(leaves), plan_.reduce,
                                     std::move(memory.target))});
}

void HalvingPhase::IssueSumOfNode(OperationContext& context) {
  const size_t bytes = static_cast<size_t>(first_.back()) * ElementBytes();
  context.tasks.Push({context.record, this, /*ticket=*/0, context.priority,
                      WholeMoveTask{this, {bytes, bytes * memory_.inputs.size()}}});
}

void HalvingPhase::Run() const {
  for (size_t place = 0; place < owners_.size(); ++place) {
    const Owner& owner = owners_[place];
    if (owner.count == 0) continue;
    std::vector<LeafSource> leaves;
    leaves.reserve(memory_.inputs.size());
    for (const std::byte* input : memory_.inputs)
      leaves.push_back({input + static_cast<size_t>(owner.begin) * ElementBytes(), plan_.dtype});
    RunReduce(program_, leaves, plan_.reduce, {At(sums_.data(), first_[place]), plan_.dtype}, owner.count);
  }
}

bool HalvingPhase::complete() const {
  return node_is_summed_ && std::all_of(exchanges_.begin(), exchanges_.end(),
                                        [](const Exchange& exchange) { return exchange.merge.finished(); });
}

bool HalvingPhase::drained() const {
  return complete() && std::all_of(exchanges_.begin(), exchanges_.end(),
                                   [](const Exchange& exchange) { return IsSent(exchange); });
}

absl::StatusOr<bool> HalvingPhase::StepExchanges(OperationContext& context) {
  bool advanced = false;
  int level = 0;
  bool are_earlier_merged = true;   // All exchanges below `level` have merged what they keep.
  bool are_of_level_merged = true;  // So have those of `level` before this one.
  for (Exchange& exchange : exchanges_) {
    if (std::exchange(level, exchange.level) != exchange.level)
      are_earlier_merged &= std::exchange(are_of_level_merged, true);
    const bool holds =
        node_is_summed_ && (are_earlier_merged || !context.wire.rules().rounds_await_earlier_ones);
    if (exchange.send) {
      WEFT_ASSIGN_OR_RETURN(const bool sent, exchange.send->Step(context, holds ? kAllSlices : 0));
      advanced |= sent;
    }
    const bool has_arrived = exchange.received == nullptr || exchange.received->finished();
    if (holds && has_arrived) advanced |= exchange.merge.Step(context, kAllSlices);
    are_of_level_merged &= exchange.merge.finished();
  }
  return advanced;
}

absl::StatusOr<bool> HalvingPhase::Step(OperationContext& context) {
  WEFT_ASSIGN_OR_RETURN(const bool credited, receives_.Step(context));
  WEFT_ASSIGN_OR_RETURN(const bool exchanged, StepExchanges(context));
  return credited || exchanged;
}

void HalvingPhase::AddAwaited(std::set<int>& ranks) const {
  receives_.AddAwaited(ranks);
  if (!ranks.empty()) return;
  for (const Exchange& exchange : exchanges_) {
    if (!IsSent(exchange)) ranks.insert(exchange.send->peer());
  }
}

RelayedGatherPhase::RelayedGatherPhase(const GroupPlacement& placement, const CollectivePlan& plan,
                                       int64_t slice_elements, bool mirrored)
    : plan_(plan),
      slice_elements_(slice_elements),
      mirrored_(mirrored),
      node_(NodeOfThisRank(placement)),
      first_({0}) {
  for (int distance = 0; distance < placement.node_count(); ++distance) {
    const int node = (node_ + distance) % placement.node_count();
    first_.push_back(first_.back() + CountOf(plan.parts, placement.MembersOf(node)));
  }
}

absl::StatusOr<std::unique_ptr<RelayedGatherPhase>> RelayedGatherPhase::Create(OperationContext& context,
                                                                               const CollectivePlan& plan,
                                                                               int64_t slice_elements,
                                                                               int channel, bool mirrored) {
  std::unique_ptr<RelayedGatherPhase> phase(
      new RelayedGatherPhase(context.placement, plan, slice_elements, mirrored));
  const size_t bytes = static_cast<size_t>(phase->first_.back()) * phase->ElementBytes();
  WEFT_ASSIGN_OR_RETURN(phase->parts_, context.scratch.Acquire(bytes));
  phase->AddRounds(context, channel);
  return phase;
}

void RelayedGatherPhase::AddRounds(const OperationContext& context, int channel) {
  const int nodes = context.placement.node_count();
  const auto message = [&](int node, int first, int end) {
    const int64_t begin = first_[static_cast<size_t>(first)];
    return RelayRounds::Message{ChannelToLeader(context, node % nodes, channel),
                                {first_[static_cast<size_t>(end)] - begin, slice_elements_},
                                {At(parts_.data(), begin), ElementBytes()}};
  };
  for (int distance = 1; distance < nodes; distance *= 2) {
    const int count = std::min(distance, nodes - distance);
    // Between mirrored nodes, what a rank sends to a node arrives as from that node.
    const int receiver = node_ + (mirrored_ ? distance : nodes - distance);
    const RelayRounds::Message sent = message(receiver, 0, count);
    const RelayRounds::Message received = message(node_ + distance, distance, distance + count);
    const bool is_ready = distance == 1 && plan_.kind != OpKind::kAllReduce;
    const auto source = is_ready ? ReceiveStream::Source::kReady : ReceiveStream::Source::kProduced;
    if (!SkipsEmpty(plan_) || sent.slicing.elements > 0) rounds_.AddSend(sent);
    if (!SkipsEmpty(plan_) || received.slicing.elements > 0) rounds_.AddReceive(received, source);
  }
}

absl::StatusOr<bool> RelayedGatherPhase::Step(OperationContext& context, bool ready) {
  WEFT_ASSIGN_OR_RETURN(bool advanced, rounds_.Step(context, ready));
  if (complete_ || !ready || !rounds_.received()) return advanced;
  if (unpacked_.empty()) Unpack(context);
  complete_ = true;
  for (CopyStream& copy : unpacked_) {
    advanced |= copy.Step(context, kAllSlices);
    complete_ &= copy.finished();
  }
  if (complete_) AnnounceResultToNode(context);
  return advanced || complete_;
}

void RelayedGatherPhase::Unpack(OperationContext& context) {
  // The output of a mirrored node has the parts of that node.
  const auto nodes = static_cast<int>(first_.size()) - 1;
  const int64_t to_end = first_[mirrored_ ? 1 : static_cast<size_t>(nodes - node_)];
  const int64_t begin = mirrored_ ? 0 : first_.back() - to_end;
  unpacked_.push_back(
      RelayedCopy(context, plan_, slice_elements_, parts_.data(), At(plan_.output, begin), to_end));
  unpacked_.push_back(
      RelayedCopy(context, plan_, slice_elements_, At(parts_.data(), to_end), plan_.output, begin));
  context.counters.copied_bytes += (begin + to_end) * static_cast<int64_t>(ElementBytes());
}

CopyStream RelayedCopy(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
                       const std::byte* source, std::byte* target, int64_t elements) {
  const size_t element_bytes = SizeOf(plan.dtype);
  const auto node_bytes = static_cast<size_t>(plan.parts.total()) * element_bytes *
                          static_cast<size_t>(context.placement.local_size());
  // SliceMemory has no const form. The source is only read.
  return {Slicing{elements, slice_elements}, plan.dtype,
          SliceMemory{const_cast<std::byte*>(source), element_bytes}, SliceMemory{target, element_bytes},
          ShouldBypassCaches(node_bytes)};
}

bool CopyOfLeader::Step(OperationContext& context) {
  if (complete() || (!leader_announced_ && !HasLeaderAnnounced(context))) return false;
  const bool is_new = !std::exchange(leader_announced_, true);
  return copy_.Step(context, kAllSlices) || is_new;
}

void CopyOfLeader::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  if (!complete()) ranks.insert(context.placement.BootstrapRank(context.placement.node_leader()));
}

}  // namespace weft
