#include "src/comm/collectives/streams.h"

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

DataTask NewTask(OperationContext& context, TaskOwner* owner, int64_t ticket) {
  DataTask task;
  task.record = context.record;
  task.owner = owner;
  task.ticket = ticket;
  task.priority = context.priority;
  return task;
}

}  // namespace

void PrefixCounter::Finish(int64_t slice) {
  if (slice != done_) {
    finished_ahead_.push_back(slice);
    return;
  }
  ++done_;
  for (auto next = std::find(finished_ahead_.begin(), finished_ahead_.end(), done_);
       next != finished_ahead_.end();
       next = std::find(finished_ahead_.begin(), finished_ahead_.end(), done_)) {
    finished_ahead_.erase(next);
    ++done_;
  }
}

bool CopyStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (progress_.issued() < std::min(available, slicing_.slices()) &&
         progress_.outstanding() < kPiecesInFlight) {
    const int64_t slice = progress_.Issue();
    DataTask task = NewTask(context, this, slice);
    task.leaves.push_back({source_.At(slicing_, slice), dtype_, source_.encoding});
    task.target.data = target_.At(slicing_, slice);
    task.target.nontemporal = nontemporal_;
    task.count = slicing_.Length(slice);
    task.bytes = static_cast<size_t>(task.count) * source_.element_bytes;
    context.tasks.Push(std::move(task));
    advanced = true;
  }
  return advanced;
}

void CompressStream::Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) {
  DataTask task = NewTask(context, owner, slice);
  task.leaves.push_back({source_.At(slicing_, slice), dtype_});
  if (delta_base_) task.leaves.push_back({delta_base_->At(slicing_, slice), dtype_});
  task.target.data = target;
  task.target.encoding = encoding();
  task.count = slicing_.Length(slice);
  task.bytes = static_cast<size_t>(task.count) * source_.element_bytes;
  context.tasks.Push(std::move(task));
}

void RangeStream::Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) {
  DataTask task = NewTask(context, owner, slice);
  task.range = &copy_;
  task.leaves.push_back({source_.At(slicing_, slice), copy_.dtype()});
  task.target.data = target;
  task.first = slicing_.Begin(slice);
  task.count = slicing_.Length(slice);
  context.tasks.Push(std::move(task));
}

bool RangeStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (progress_.issued() < std::min(available, slicing_.slices()) &&
         progress_.outstanding() < kPiecesInFlight) {
    Issue(context, progress_.Issue(), target_, this);
    advanced = true;
  }
  return advanced;
}

void ReduceStream::Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) {
  ReduceTarget single = target_;
  single.data = target;
  single.copies.clear();
  Push(context, slice, std::move(single), owner);
}

void ReduceStream::Push(OperationContext& context, int64_t slice, ReduceTarget target, TaskOwner* owner) {
  DataTask task = NewTask(context, owner, slice);
  task.program = &program_;
  for (const Leaf& leaf : leaves_) {
    task.leaves.push_back({leaf.memory.At(slicing_, slice), leaf.dtype, leaf.memory.encoding});
  }
  task.op = op_;
  task.target = std::move(target);
  task.count = slicing_.Length(slice);
  context.tasks.Push(std::move(task));
}

void ReduceStream::IssueToTarget(OperationContext& context, int64_t slice, TaskOwner* owner) {
  const auto address_in = [&](std::byte* run) {
    return SliceMemory{run, SizeOf(target_.dtype)}.At(slicing_, slice);
  };
  ReduceTarget target = target_;
  target.data = address_in(target_.data);
  std::transform(target_.copies.begin(), target_.copies.end(), target.copies.begin(), address_in);
  Push(context, slice, std::move(target), owner);
}

bool ReduceStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (progress_.issued() < std::min(available, slicing_.slices()) &&
         progress_.outstanding() < kPiecesInFlight) {
    IssueToTarget(context, progress_.Issue(), this);
    advanced = true;
  }
  return advanced;
}

absl::StatusOr<bool> ReceiveStream::Credit(OperationContext& context, int64_t consumed, int64_t limit) {
  const int64_t slice = progress_.issued();
  if (slice >= std::min(limit, slicing_.slices())) return false;
  if (target_.ring_slices != 0 && slice >= consumed + target_.ring_slices) return false;
  context.wire.RegisterDemand(context.priority);
  const size_t bytes = target_.MaxSliceBytes(slicing_, slice);
  if (!context.wire.MayReceive(channel_.lane, phase_, context.priority, bytes, context.head)) return false;
  progress_.Issue();
  const auto length =
      target_.encoding == WireEncoding::kPlain ? WireLink::Length::kExact : WireLink::Length::kAtMost;
  WEFT_RETURN_IF_ERROR(context.wire.Receive(channel_, phase_, context.priority, context.record->descriptor,
                                            part_, {slice, target_.At(slicing_, slice), bytes, length},
                                            this));
  return true;
}

absl::Status ReceiveStream::AnnounceEmpty(OperationContext& context) {
  if (slicing_.elements > 0 || announced_empty_) return absl::OkStatus();
  announced_empty_ = true;
  return context.wire.AnnounceEmptyPart(channel_, context.record->descriptor);
}

absl::StatusOr<bool> ReceiveStream::Step(OperationContext& context, int64_t consumed) {
  WEFT_RETURN_IF_ERROR(AnnounceEmpty(context));
  bool advanced = false;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool credited, Credit(context, consumed, slicing_.slices()));
    if (!credited) return advanced;
    advanced = true;
  }
}

}  // namespace weft
