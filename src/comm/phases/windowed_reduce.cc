#include "src/comm/phases/windowed_reduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/core/status.h"

namespace weft {
namespace {

// Slices of one saved value: the first stage of a slice may run while the last one of the slice before it
// does.
constexpr int64_t kSavedSlices = 2;

// The type in which sums are accumulated: see RunReduce.
DType AccumulationDType(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WindowedReduce>> WindowedReduce::Create(const OperationContext& context,
                                                                       Plan plan) {
  const std::vector<int>& remote = plan.stages.remote;
  std::unique_ptr<WindowedReduce> reduce(
      new WindowedReduce(plan.slicing, static_cast<int64_t>(remote.size())));
  WEFT_RETURN_IF_ERROR(reduce->Allocate(context, plan));
  std::vector<SliceMemory> slots;
  std::vector<DType> dtypes;
  for (const int subtree : remote) {
    const Remote input = plan.remote_input(subtree);
    SliceMemory slot{reduce->window_.data(), SizeOf(input.dtype), reduce->slots_,
                     WireEncodingOf(context, input.dtype)};
    slot.window =
        SliceMemory::Window{static_cast<int64_t>(slots.size()), reduce->remote_count_, reduce->slot_bytes_};
    reduce->receives_.emplace_back(input.channel, WirePhase::kReduce, plan.slicing, slot);
    slots.push_back(slot);
    dtypes.push_back(input.dtype);
  }
  for (ReductionStage& stage : plan.stages.stages) {
    std::vector<ReduceStream::Leaf> leaves;
    for (const StageInput& input : stage.inputs) {
      const auto index = static_cast<size_t>(input.index);
      switch (input.kind) {
        case StageInput::Kind::kLocalRank:
          leaves.push_back({plan.local_input(input.index), plan.dtype});
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
        *reduce,
        ReduceStream(plan.slicing, std::move(stage.program), std::move(leaves), plan.op, std::move(target)),
        stage);
  }
  return reduce;
}

absl::Status WindowedReduce::Allocate(const OperationContext& context, const Plan& plan) {
  saved_dtype_ = AccumulationDType(plan.dtype);
  for (const int subtree : plan.stages.remote) {
    const DType dtype = plan.remote_input(subtree).dtype;
    const SliceMemory slice{nullptr, SizeOf(dtype), 1, WireEncodingOf(context, dtype)};
    slot_bytes_ = std::max(slot_bytes_, slice.SlotBytes(slicing_));
  }
  if (slot_bytes_ == 0) return absl::OkStatus();
  slots_ = RingSlices(context, remote_count_) * remote_count_;
  if (remote_count_ > context.options.reduce_fan_in) {
    const int64_t most = context.options.reduce_window_bytes / static_cast<int64_t>(slot_bytes_);
    slots_ = std::max(context.options.reduce_fan_in, std::min(slots_, most));
  }
  slots_ = std::min(slots_, remote_count_ * slicing_.slices());
  WEFT_ASSIGN_OR_RETURN(window_, context.scratch.Acquire(static_cast<size_t>(slots_) * slot_bytes_));
  if (plan.stages.saved_values == 0) return absl::OkStatus();
  const SliceMemory saved{nullptr, SizeOf(saved_dtype_), kSavedSlices};
  saved_bytes_ = static_cast<size_t>(kSavedSlices) * saved.SlotBytes(slicing_);
  WEFT_ASSIGN_OR_RETURN(
      saved_, context.scratch.Acquire(static_cast<size_t>(plan.stages.saved_values) * saved_bytes_));
  return absl::OkStatus();
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
  const int64_t end = std::min(needed + slots_, remote_count_ * slicing_.slices());
  bool advanced = false;
  for (; credited_ < end; ++credited_) {
    const int64_t slice = credited_ / remote_count_;
    ReceiveStream& receive = receives_[static_cast<size_t>(credited_ % remote_count_)];
    WEFT_ASSIGN_OR_RETURN(const bool credited, receive.Credit(context, /*consumed=*/slice, slice + 1));
    if (!credited) break;
    advanced = true;
  }
  return advanced;
}

bool WindowedReduce::HasArrived(const Stage& stage, int64_t slice) {
  const int64_t count = stage.end_remote - stage.first_remote;
  while (arrived_in_stage_ < count &&
         receives_[static_cast<size_t>(stage.first_remote + arrived_in_stage_)].done() > slice) {
    ++arrived_in_stage_;
  }
  return arrived_in_stage_ == count;
}

bool WindowedReduce::StepStages(OperationContext& context) {
  bool advanced = false;
  const int64_t steps = slicing_.slices() * stage_count();
  while (progress_.issued() < steps && progress_.outstanding() < kPiecesInFlight) {
    const int64_t slice = progress_.issued() / stage_count();
    const int64_t index = progress_.issued() % stage_count();
    Stage& stage = stages_[static_cast<size_t>(index)];
    // A stage may read what the stage before it saves.
    if (index > 0 && progress_.done() < progress_.issued()) break;
    if (!HasArrived(stage, slice)) break;
    arrived_in_stage_ = 0;
    progress_.Issue();
    if (stage.saves_to == ReductionStage::kResult) {
      stage.stream.IssueToTarget(context, slice, &stage);
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

}  // namespace weft
