#include "src/comm/collectives/reduce_phase.h"

#include <algorithm>
#include <limits>
#include <map>
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

// Numbers of the leaves of the reduction tree at the owner of a part. Each local rank is a leaf, and each
// maximal subtree of a remote node is a leaf.
class LeafNumbering {
 public:
  explicit LeafNumbering(const GroupPlacement& placement) {
    for (size_t i = 0; i < placement.subtrees().size(); ++i) {
      const NodeSubtree& subtree = placement.subtrees()[i];
      if (!placement.IsLocal(subtree.lo)) {
        number_[{subtree.lo, subtree.count}] = count_++;
        remote_.push_back(static_cast<int>(i));
        continue;
      }
      for (int rank = subtree.lo; rank < subtree.lo + subtree.count; ++rank) number_[{rank, 1}] = count_++;
    }
  }
  int count() const { return count_; }
  const std::vector<int>& remote_subtrees() const { return remote_; }
  int Of(int lo, int n) const {
    const auto it = number_.find({lo, n});
    return it == number_.end() ? -1 : it->second;
  }

 private:
  std::map<std::pair<int, int>, int> number_;
  std::vector<int> remote_;
  int count_ = 0;
};

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
  const Slicing slicing = SlicingOf(me);
  const LeafNumbering numbering(placement);
  std::vector<ReduceStream::Leaf> leaves(static_cast<size_t>(numbering.count()));
  for (int member = 0; member < placement.size(); ++member) {
    if (!placement.IsLocal(member)) continue;
    leaves[static_cast<size_t>(numbering.Of(member, 1))] = {PartOf(member, me), plan_.dtype};
  }

  const std::vector<int>& remote = numbering.remote_subtrees();
  ring_slices_ = RingSlices(context, static_cast<int64_t>(remote.size()));
  const size_t ring_bytes =
      MakeRing(context, PartialDType(plan_.dtype), ring_slices_, nullptr).RingBytes(slicing);
  if (!remote.empty() && ring_bytes > 0) {
    WEFT_ASSIGN_OR_RETURN(ring_, context.scratch.Acquire(remote.size() * ring_bytes));
  }
  for (size_t i = 0; i < remote.size(); ++i) {
    const NodeSubtree& subtree = placement.subtrees()[static_cast<size_t>(remote[i])];
    const DType dtype = WireDType(subtree, plan_.dtype);
    const SliceMemory ring = MakeRing(context, dtype, ring_slices_, ring_.data() + i * ring_bytes);
    leaves[static_cast<size_t>(numbering.Of(subtree.lo, subtree.count))] = {ring, dtype};
    receives_.emplace_back(
        MakeChannel(context, placement.PartialSender(remote[i], me), ChannelOf(placement, remote[i])),
        WirePhase::kReduce, slicing, ring);
  }

  ReduceTarget target = TargetOf(placement, plan_, memory_.output);
  target.copies.assign(memory_.copies.begin(), memory_.copies.end());
  reduce_.emplace(slicing,
                  BuildReduceProgram(0, placement.size(), [&](int lo, int n) { return numbering.Of(lo, n); }),
                  std::move(leaves), plan_.reduce, std::move(target));
  return absl::OkStatus();
}

void ReducePhase::PlanPartials(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  for (int step = 1; step < placement.size(); ++step) {
    const int target = (me + step) % placement.size();
    if (placement.IsLocal(target)) continue;
    for (size_t i = 0; i < placement.subtrees().size(); ++i) {
      const NodeSubtree& subtree = placement.subtrees()[i];
      const int index = static_cast<int>(i);
      if (!placement.IsLocal(subtree.lo) || placement.PartialSender(index, target) != me) continue;
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

// Gives credits slice by slice, over all partial sums: a slice can be reduced only when all of its partials
// have arrived.
absl::StatusOr<bool> ReducePhase::StepReceives(OperationContext& context) {
  for (ReceiveStream& receive : receives_) WEFT_RETURN_IF_ERROR(receive.AnnounceEmpty(context));
  bool advanced = false;
  const int64_t last = std::min(reduce_->done() + ring_slices_, reduce_->slicing().slices());
  for (int64_t limit = reduce_->done() + 1; limit <= last; ++limit) {
    for (ReceiveStream& receive : receives_) {
      WEFT_ASSIGN_OR_RETURN(const bool credited, receive.Credit(context, reduce_->done(), limit));
      advanced |= credited;
    }
  }
  return advanced;
}

absl::StatusOr<bool> ReducePhase::Step(OperationContext& context) {
  WEFT_ASSIGN_OR_RETURN(bool advanced, StepReceives(context));
  int64_t available = std::numeric_limits<int64_t>::max();
  for (const ReceiveStream& receive : receives_) available = std::min(available, receive.done());
  advanced |= reduce_->Step(context, available);
  WEFT_ASSIGN_OR_RETURN(const bool sent, partials_.Step(context));
  return advanced || sent;
}

int64_t ReducePhase::ReadSlices(int member) const {
  const OutgoingStream* own = own_sends_[static_cast<size_t>(member)];
  return own == nullptr ? std::numeric_limits<int64_t>::max() : own->read_slices();
}

bool ReducePhase::drained() const { return complete() && partials_.finished(); }

void ReducePhase::AddAwaited(std::set<int>& ranks) const {
  for (const ReceiveStream& receive : receives_) {
    if (!receive.finished()) ranks.insert(receive.peer());
  }
  partials_.AddAwaited(ranks);
}

}  // namespace weft
