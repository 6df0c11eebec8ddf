#include "src/comm/phases/reduce_phase.h"

#include <algorithm>
#include <utility>
#include <vector>

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
  return {context.record->lane, context.record->descriptor.sequence, context.placement.BootstrapRank(member),
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

// Slices of one saved value: the first stage of a slice may run while the last one of the slice before it
// does.
constexpr int64_t kSavedSlices = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<WindowedReduce>> WindowedReduce::Create(const OperationContext& context,
                                                                       const Plan& plan) {
  const std::vector<int>& remote = plan.stages->remote;
  std::unique_ptr<WindowedReduce> reduce(
      new WindowedReduce(plan.slicing, static_cast<int64_t>(remote.size()), plan.domain_sums));
  WEFT_RETURN_IF_ERROR(reduce->Allocate(context, plan));
  std::vector<SliceMemory> slots;
  std::vector<DType> dtypes;
  for (const int subtree : remote) {
    const Remote input = plan.remote_input(subtree);
    slots.push_back(reduce->SlotsOf(context, input.dtype));
    ReceiveStream& receive =
        reduce->receives_.emplace_back(input.channel, WirePhase::kReduce, plan.slicing, slots.back());
    receive.KeepPace(reduce->pace_);
    const bool is_plain = slots.back().encoding == WireEncoding::kPlain;
    if (reduce->ring_slices_ > 0 && input.lies_in_part && is_plain) receive.ReceiveRuns();
    dtypes.push_back(input.dtype);
  }
  for (const ReductionStage& stage : plan.stages->stages) {
    std::vector<ReduceStream::Leaf> leaves;
    for (const StageInput& input : stage.inputs) {
      const auto index = static_cast<size_t>(input.index);
      switch (input.kind) {
        case StageInput::Kind::kLocalRank:
        case StageInput::Kind::kDomainSum:
          leaves.push_back(plan.local_input(input));
          break;
        case StageInput::Kind::kRemote:
          leaves.push_back({slots[index], dtypes[index]});
          break;
        case StageInput::Kind::kSaved:
          leaves.push_back({reduce->SavedValue(input.index), reduce->saved_dtype_});
          break;
      }
    }
    const bool is_result = stage.saves_to == ReductionStage::kResult;
    ReduceTarget target = is_result ? plan.target : ReduceTarget{nullptr, reduce->saved_dtype_};
    reduce->stages_.emplace_back(
        *reduce, ReduceStream(plan.slicing, stage.program, std::move(leaves), plan.op, std::move(target)),
        stage);
    ReduceStream& stream = reduce->stages_.back().stream;
    if (is_result) stream.SetCrossingOutputs(plan.crossing_outputs);
    stream.CountCrossing(context);
  }
  return reduce;
}

absl::Status WindowedReduce::Allocate(const OperationContext& context, const Plan& plan) {
  saved_dtype_ = AccumulationDType(plan.dtype);
  bool may_have_runs = true;
  for (const int subtree : plan.stages->remote) {
    const Remote input = plan.remote_input(subtree);
    const SliceMemory slice{nullptr, SizeOf(input.dtype), 1, WireEncodingOf(context, input.dtype)};
    slot_bytes_ = std::max(slot_bytes_, slice.SlotBytes(slicing_));
    may_have_runs &= input.lies_in_part && slice.encoding == WireEncoding::kPlain;
  }
  if (slot_bytes_ == 0) return absl::OkStatus();
  const RingUse use = may_have_runs ? RingUse::kReductionInRuns : RingUse::kReduction;
  slots_ = RingSlices(context, remote_count_, use, slicing_.slices()) * remote_count_;
  if (remote_count_ > context.options.reduce_fan_in) {
    const int64_t most = context.options.reduce_window_bytes / static_cast<int64_t>(slot_bytes_);
    slots_ = std::max(context.options.reduce_fan_in, std::min(slots_, most));
  }
  // A ring for each sender costs a look at all senders for each credit, so it is used only if it can hold
  // runs.
  const int64_t ring = slots_ / remote_count_;
  if (slots_ % remote_count_ == 0 && ring >= CreditScheduler::kRunsOfRing * CreditScheduler::kFewestInRun)
    ring_slices_ = ring;
  WEFT_ASSIGN_OR_RETURN(window_, context.scratch.Acquire(static_cast<size_t>(slots_) * slot_bytes_));
  if (plan.stages->saved_values == 0) return absl::OkStatus();
  const SliceMemory saved{nullptr, SizeOf(saved_dtype_), kSavedSlices};
  saved_bytes_ = static_cast<size_t>(kSavedSlices) * saved.SlotBytes(slicing_);
  WEFT_ASSIGN_OR_RETURN(
      saved_, context.scratch.Acquire(static_cast<size_t>(plan.stages->saved_values) * saved_bytes_));
  return absl::OkStatus();
}

SliceMemory WindowedReduce::SlotsOf(const OperationContext& context, DType dtype) const {
  const auto remote = static_cast<int64_t>(receives_.size());
  SliceMemory slots = MakeRing(context, dtype, slots_, window_.data());
  if (ring_slices_ == 0) {
    slots.window = SliceMemory::Window{remote, remote_count_, slot_bytes_};
    return slots;
  }
  slots.ring_slices = ring_slices_;
  slots.base += static_cast<size_t>(remote * ring_slices_) * slot_bytes_;
  return slots;
}

SliceMemory WindowedReduce::SavedValue(int index) const {
  return {saved_.data() + static_cast<size_t>(index) * saved_bytes_, SizeOf(saved_dtype_), kSavedSlices};
}

absl::StatusOr<bool> WindowedReduce::StepCredits(OperationContext& context) {
  if (!std::exchange(announced_empty_, true)) {
    for (ReceiveStream& receive : receives_) WEFT_RETURN_IF_ERROR(receive.AnnounceEmpty(context));
  }
  if (remote_count_ == 0) return false;
  const int64_t step = progress_.done();
  const int64_t needed =
      step / stage_count() * remote_count_ + stages_[static_cast<size_t>(step % stage_count())].first_remote;
  for (ReceiveStream& receive : receives_) receive.CheckPeerStarted(context);
  bool advanced = false;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool credited, CreditNext(context, needed));
    if (!credited) return advanced;
    advanced = true;
  }
}

absl::StatusOr<bool> WindowedReduce::CreditNext(OperationContext& context, int64_t needed) {
  if (ring_slices_ == 0) {
    if (credited_ >= std::min(needed + slots_, remote_count_ * slicing_.slices())) return false;
    const int64_t slice = credited_ / remote_count_;
    ReceiveStream& receive = receives_[static_cast<size_t>(credited_ % remote_count_)];
    WEFT_ASSIGN_OR_RETURN(const bool credited, receive.Credit(context, /*consumed=*/slice, slice + 1));
    if (credited) ++credited_;
    return credited;
  }
  // The sender with the fewest credits. Several have as few: the one with the fewest slices in flight.
  const auto next = std::min_element(
      receives_.begin(), receives_.end(), [](const ReceiveStream& a, const ReceiveStream& b) {
        return std::pair(a.issued(), a.in_flight()) < std::pair(b.issued(), b.in_flight());
      });
  const int64_t remote = next - receives_.begin();
  // Slices of this sender at positions that are no longer needed.
  const int64_t consumed = (needed - remote + remote_count_ - 1) / remote_count_;
  return next->Credit(context, consumed, slicing_.slices());
}

bool WindowedReduce::HasArrived(const Stage& stage, int64_t slice) {
  const int64_t count = stage.end_remote - stage.first_remote;
  while (arrived_in_stage_ < count &&
         receives_[static_cast<size_t>(stage.first_remote + arrived_in_stage_)].done() > slice) {
    ++arrived_in_stage_;
  }
  return arrived_in_stage_ == count;
}

int64_t WindowedReduce::NextSlices(const OperationContext& context, const Stage& stage, int64_t slice) const {
  if (stage_count() > 1 || ring_slices_ == 0) return 1;
  // A task reads and writes up to four times the bytes of a run: sums of many inputs have shorter runs.
  constexpr int64_t kMovedOfRun = 4;
  const int64_t bytes =
      std::max(slicing_.SliceBytes(stage.stream.element_dtype()), stage.stream.MovedBytes() / kMovedOfRun);
  int64_t slices = std::min(context.wire.LongestRun(context.priority, bytes), slicing_.slices() - slice);
  if (slices <= 1) return 1;
  for (const ReceiveStream& receive : receives_) slices = std::min(slices, receive.done() - slice);
  if (domain_sums_ != nullptr) slices = std::min(slices, domain_sums_->available(context) - slice);
  return stage.stream.LongestRun(slice, slices);
}

bool WindowedReduce::StepStages(OperationContext& context) {
  bool advanced = false;
  const int64_t steps = slicing_.slices() * stage_count();
  while (progress_.issued() < steps) {
    const int64_t slice = progress_.issued() / stage_count();
    const int64_t index = progress_.issued() % stage_count();
    Stage& stage = stages_[static_cast<size_t>(index)];
    // A stage may read what the stage before it saves.
    if (index > 0 && progress_.done() < progress_.issued()) break;
    if (!HasArrived(stage, slice)) break;
    if (domain_sums_ != nullptr && domain_sums_->available(context) <= slice) break;
    const int64_t slices = NextSlices(context, stage, slice);
    if (progress_.outstanding() >= kPiecesInFlight * slices) break;
    arrived_in_stage_ = 0;
    progress_.Issue(slices);
    if (stage.saves_to == ReductionStage::kResult) {
      stage.stream.IssueToTarget(context, slice, &stage, slices);
    } else {
      stage.stream.Issue(context, slice, SavedValue(stage.saves_to).At(slicing_, slice), &stage);
    }
    advanced = true;
  }
  return advanced;
}

absl::StatusOr<bool> WindowedReduce::Step(OperationContext& context) {
  WEFT_ASSIGN_OR_RETURN(const bool credited, StepCredits(context));
  return StepStages(context) || credited;
}

void WindowedReduce::AddAwaited(std::set<int>& ranks) const {
  for (const ReceiveStream& receive : receives_) {
    if (!receive.finished()) ranks.insert(receive.peer());
  }
}

ReduceTarget TargetOf(const GroupPlacement& placement, const CollectivePlan& plan, std::byte* output) {
  const size_t node_bytes =
      static_cast<size_t>(plan.parts.total()) * SizeOf(plan.dtype) * (placement.local_peers().size() + 1);
  const bool average = plan.reduce == ReduceOp::kAverage;
  const double scale = average ? 1.0 / placement.size() : plan.scale;
  return {output, plan.dtype, scale, ShouldBypassCaches(2 * node_bytes)};
}

DType AccumulationDType(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

DType PartialDType(DType dtype) { return dtype == DType::kF16 ? DType::kF32 : dtype; }

ReducePhase::ReducePhase(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
                         Memory memory)
    : plan_(plan),
      slice_elements_(slice_elements),
      memory_(std::move(memory)),
      slots_(SlotBytes(context, plan, slice_elements)),
      own_sends_(static_cast<size_t>(context.placement.size()), nullptr) {}

absl::StatusOr<std::unique_ptr<ReducePhase>> ReducePhase::Create(OperationContext& context,
                                                                 const CollectivePlan& plan,
                                                                 int64_t slice_elements,
                                                                 const Memory& memory) {
  std::unique_ptr<ReducePhase> phase(new ReducePhase(context, plan, slice_elements, memory));
  if (DomainSums::Applies(context.placement)) {
    WEFT_ASSIGN_OR_RETURN(phase->domain_sums_,
                          DomainSums::Create(context, plan, phase->memory_.inputs, slice_elements));
  } else {
    WEFT_RETURN_IF_ERROR(phase->Plan(context));
  }
  return phase;
}

absl::Status ReducePhase::Plan(const OperationContext& context) {
  WEFT_RETURN_IF_ERROR(PlanOwnPart(context));
  PlanPartials(context);
  return absl::OkStatus();
}

absl::Status ReducePhase::PlanOwnPart(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  const auto local_input = [&](const StageInput& input) -> ReduceStream::Leaf {
    if (input.kind == StageInput::Kind::kLocalRank)
      return {PartOf(input.index, me), plan_.dtype, !placement.IsInDomain(input.index)};
    const NodeSubtree& subtree = placement.domain_subtrees()[static_cast<size_t>(input.index)];
    return *domain_sums_->LeafOf(placement, subtree.lo, subtree.count);
  };
  const auto remote_input = [&](int subtree) {
    const int sender = placement.PartialSender(subtree, me);
    const NodeSubtree& ranks = placement.subtrees()[static_cast<size_t>(subtree)];
    return WindowedReduce::Remote{MakeChannel(context, sender, ChannelOf(placement, subtree)),
                                  WireDType(ranks, plan_.dtype),
                                  ranks.count == 1 && plan_.parts.ranges == nullptr};
  };
  ReduceTarget target = TargetOf(placement, plan_, memory_.output);
  target.copies.assign(memory_.copies.begin(), memory_.copies.end());
  // The copies are the outputs of all other ranks of the node.
  const int crossing_outputs = memory_.copies.empty() ? 0 : placement.local_size() - placement.domain_size();
  WEFT_ASSIGN_OR_RETURN(
      reduce_, WindowedReduce::Create(
                   context, {SlicingOf(me), plan_.dtype, plan_.reduce, std::move(target), crossing_outputs,
                             StagesOf(placement, static_cast<int>(context.options.reduce_fan_in)),
                             local_input, remote_input, domain_sums_.get()}));
  return absl::OkStatus();
}

void ReducePhase::PlanPartials(const OperationContext& context) {
  const GroupPlacement& placement = context.placement;
  const int me = placement.me();
  const std::vector<int>& local_subtrees = placement.SubtreesOf(placement.NodeOf(me));
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
            partials_.AddPart(channel, {slicing, dtype, PartOf(me, target), encoding}, slots_);
        continue;
      }
      ReduceTarget slot{nullptr, dtype};
      slot.encoding = encoding;
      partials_.Add(std::make_unique<StagedSendStream>(channel, MakePartial(context, subtree, target, slot),
                                                       PartShape::OneDim(slicing.elements), slots_));
    }
  }
}

std::unique_ptr<SliceSource> ReducePhase::MakePartial(const OperationContext& context,
                                                      const NodeSubtree& subtree, int target,
                                                      const ReduceTarget& slot) const {
  const GroupPlacement& placement = context.placement;
  if (domain_sums_) return domain_sums_->MakePartial(context, subtree, target, slot);
  std::vector<ReduceStream::Leaf> leaves;
  for (int rank = subtree.lo; rank < subtree.lo + subtree.count; ++rank)
    leaves.push_back({PartOf(rank, target), plan_.dtype, !placement.IsInDomain(rank)});
  ReduceProgram program = ReduceProgramOfRanks(subtree.lo, subtree.count);
  auto partial = std::make_unique<ReduceStream>(SlicingOf(target), std::move(program), std::move(leaves),
                                                plan_.reduce, slot);
  partial->CountCrossing(context);
  return partial;
}

absl::StatusOr<bool> ReducePhase::Step(OperationContext& context) {
  bool summed = domain_sums_ && domain_sums_->Step(context);
  if (!reduce_) {
    if (!domain_sums_->FindRings(context)) return summed;
    WEFT_RETURN_IF_ERROR(Plan(context));
  }
  WEFT_ASSIGN_OR_RETURN(const bool reduced, reduce_->Step(context));
  WEFT_ASSIGN_OR_RETURN(const bool sent, partials_.Step(context));
  if (domain_sums_ && domain_sums_->AnnounceReduced(context, reduce_->done())) summed = true;
  return reduced || sent || summed;
}

int64_t ReducePhase::ReadSlices(int member) const {
  if (!reduce_) return 0;
  const OutgoingStream* own = own_sends_[static_cast<size_t>(member)];
  return own == nullptr ? kAllSlices : own->read_slices();
}

bool ReducePhase::drained() const {
  return complete() && partials_.finished() && (!domain_sums_ || domain_sums_->finished());
}

void ReducePhase::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  if (domain_sums_) domain_sums_->AddAwaited(context, ranks);
  if (!reduce_) return;
  reduce_->AddAwaited(ranks);
  partials_.AddAwaited(ranks);
}

}  // namespace weft
