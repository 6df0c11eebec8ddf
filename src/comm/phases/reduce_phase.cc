#include "src/comm/phases/reduce_phase.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/comm/base/copy_bytes.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// A sender's partial sums come from the subtrees of its node.
int ChannelOf(const GroupPlacement& placement, int subtree) { return 1 + placement.SubtreeInNode(subtree); }

// Dtype in which the partial sum of a subtree travels. The partial of a single rank is its input and keeps
// its dtype.
DType WireDType(const NodeSubtree& subtree, DType dtype) {
  return subtree.count == 1 ? dtype : PartialDType(dtype);
}

CreditScheduler::Channel MakeChannel(const OperationContext& context, int member, int number) {
  return {context.record->lane, context.record->descriptor.sequence, context.placement.WorldRank(member),
          number};
}

// Ring of received slices in scratch.
SliceMemory MakeRing(const OperationContext& context, DType dtype, int64_t slices, std::byte* base) {
  return {base, SizeOf(dtype), slices, WireEncodingOf(context, dtype)};
}

// Bytes of a scratch slot: an encoded slice of the largest part.
size_t SlotBytes(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements) {
  const int64_t largest = *std::max_element(plan.parts.counts.begin(), plan.parts.counts.end());
  return MakeRing(context, PartialDType(plan.dtype), 1, nullptr).SlotBytes({largest, slice_elements});
}

}  // namespace

ReduceTarget TargetOf(const GroupPlacement& placement, const CollectivePlan& plan, std::byte* output) {
  const size_t node_bytes =
      static_cast<size_t>(plan.parts.total()) * SizeOf(plan.dtype) * (placement.local_peers().size() + 1);
  const bool average = plan.reduce == ReduceOp::kAverage;
  const double scale = average ? 1.0 / placement.size() : plan.scale;
  return {output, plan.dtype, scale, ShouldBypassCaches(node_bytes)};
}

DType PartialDType(DType dtype) { return dtype == DType::kF16 ? DType::kF32 : dtype; }

ReducePhase::ReducePhase(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
                         Memory memory)
    : plan_(plan),
      slice_elements_(slice_elements),
      memory_(std::move(memory)),
      slots_(kSenderSlots, SlotBytes(context, plan, slice_elements)),
      own_sends_(static_cast<size_t>(context.placement.size()), nullptr) {}

absl::StatusOr<std::unique_ptr<ReducePhase>> ReducePhase::Create(const OperationContext& context,
                                                                 const CollectivePlan& plan,
                                                                 int64_t slice_elements,
                                                                 const Memory& memory) {
  std::unique_ptr<ReducePhase> phase(new ReducePhase(context, plan, slice_elements, memory));
  WEFT_RETURN_IF_ERROR(phase->PlanOwnPart(context));
  phase->PlanPartials(context);
  return phase;
}

absl::Status ReducePhase::PlanOwnPart(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  const auto local_input = [&](int member) { return PartOf(member, me); };
  const auto remote_input = [&](int subtree) {
    const int sender = placement.PartialSender(subtree, me);
    return WindowedReduce::Remote{MakeChannel(context, sender, ChannelOf(placement, subtree)),
                                  WireDType(placement.subtrees()[static_cast<size_t>(subtree)], plan_.dtype)};
  };
  ReduceTarget target = TargetOf(placement, plan_, memory_.output);
  target.copies.assign(memory_.copies.begin(), memory_.copies.end());
  WEFT_ASSIGN_OR_RETURN(
      reduce_,
      WindowedReduce::Create(context, {SlicingOf(me), plan_.dtype, plan_.reduce, std::move(target),
                                       StagesOf(placement, static_cast<int>(context.options.reduce_fan_in)),
                                       local_input, remote_input}));
  return absl::OkStatus();
}

void ReducePhase::PlanPartials(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  std::vector<int> local_subtrees;
  for (size_t i = 0; i < placement.subtrees().size(); ++i) {
    if (placement.IsLocal(placement.subtrees()[i].lo)) local_subtrees.push_back(static_cast<int>(i));
  }
  for (int step = 1; step < placement.size(); ++step) {
    const int target = (me + step) % placement.size();
    if (placement.IsLocal(target)) continue;
    for (const int index : local_subtrees) {
      const NodeSubtree& subtree = placement.subtrees()[static_cast<size_t>(index)];
      if (placement.PartialSender(index, target) != me) continue;
      const CreditScheduler::Channel channel = MakeChannel(context, target, ChannelOf(placement, index));
      const Slicing slicing = SlicingOf(target);
      const DType dtype = WireDType(subtree, plan_.dtype);
      const WireEncoding encoding = WireEncodingOf(context, dtype);
      if (subtree.count == 1) {
        own_sends_[static_cast<size_t>(target)] =
            partials_.AddRun(channel, {slicing, dtype, PartOf(me, target), encoding}, slots_);
        continue;
      }
      std::vector<ReduceStream::Leaf> leaves;
      for (int rank = subtree.lo; rank < subtree.lo + subtree.count; ++rank) {
        leaves.push_back({PartOf(rank, target), plan_.dtype});
      }
      ReduceProgram program = BuildReduceProgram(
          subtree.lo, subtree.count, [&](int lo, int n) { return n == 1 ? lo - subtree.lo : -1; });
      ReduceTarget slot{nullptr, dtype};
      slot.encoding = encoding;
      auto partial =
          std::make_unique<ReduceStream>(slicing, std::move(program), std::move(leaves), plan_.reduce, slot);
      partials_.Add(std::make_unique<StagedSendStream>(channel, std::move(partial),
                                                       PartShape::OneDim(slicing.elements), slots_));
    }
  }
}

absl::StatusOr<bool> ReducePhase::Step(OperationContext& context) {
  WEFT_ASSIGN_OR_RETURN(const bool reduced, reduce_->Step(context));
  WEFT_ASSIGN_OR_RETURN(const bool sent, partials_.Step(context));
  return reduced || sent;
}

int64_t ReducePhase::ReadSlices(int member) const {
  const OutgoingStream* own = own_sends_[static_cast<size_t>(member)];
  return own == nullptr ? std::numeric_limits<int64_t>::max() : own->read_slices();
}

bool ReducePhase::drained() const { return complete() && partials_.finished(); }

void ReducePhase::AddAwaited(std::set<int>& ranks) const {
  reduce_->AddAwaited(ranks);
  partials_.AddAwaited(ranks);
}

}  // namespace weft
