#include "src/comm/streams.h"

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

// Slices that the receiver has asked for. `heard` becomes true with its first word.
absl::StatusOr<int64_t> SlicesAskedFor(const OperationContext& context, const WireDesk::Channel& channel,
                                       const PartShape& part, bool& heard) {
  const std::optional<WireDesk::Credit> credit = context.wire.CreditOf(channel);
  if (!credit) return 0;
  heard = true;
  if (credit->part == part) return credit->slices;
  const int own_rank = context.placement.WorldRank(context.placement.me());
  return PartMismatch(*context.record, own_rank, part, channel.peer, credit->part);
}

}  // namespace

void PrefixCounter::Finish(int64_t slice) {
  if (slice != done_) {
    ahead_.push_back(slice);
    return;
  }
  ++done_;
  for (auto next = std::find(ahead_.begin(), ahead_.end(), done_); next != ahead_.end();
       next = std::find(ahead_.begin(), ahead_.end(), done_)) {
    ahead_.erase(next);
    ++done_;
  }
}

bool CopyStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (progress_.issued() < std::min(available, slicing_.slices()) &&
         progress_.outstanding() < kPiecesInFlight) {
    const int64_t slice = progress_.Issue();
    DataTask task = NewTask(context, this, slice);
    task.leaves.push_back({source_.At(slicing_, slice), dtype_, source_.compressed});
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
  task.target.data = target;
  task.target.compressed = true;
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
  ReduceTarget elsewhere = target_;
  elsewhere.data = target;
  elsewhere.copies.clear();
  Push(context, slice, std::move(elsewhere), owner);
}

void ReduceStream::Push(OperationContext& context, int64_t slice, ReduceTarget target, TaskOwner* owner) {
  DataTask task = NewTask(context, owner, slice);
  task.program = &program_;
  for (const Leaf& leaf : leaves_) {
    task.leaves.push_back({leaf.memory.At(slicing_, slice), leaf.dtype, leaf.memory.compressed});
  }
  task.op = op_;
  task.target = std::move(target);
  task.count = slicing_.Length(slice);
  context.tasks.Push(std::move(task));
}

void ReduceStream::IssueInPlace(OperationContext& context, int64_t slice, TaskOwner* owner) {
  const auto place = [&](std::byte* run) {
    return SliceMemory{run, SizeOf(target_.dtype)}.At(slicing_, slice);
  };
  ReduceTarget target = target_;
  target.data = place(target_.data);
  std::transform(target_.copies.begin(), target_.copies.end(), target.copies.begin(), place);
  Push(context, slice, std::move(target), owner);
}

bool ReduceStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (progress_.issued() < std::min(available, slicing_.slices()) &&
         progress_.outstanding() < kPiecesInFlight) {
    IssueInPlace(context, progress_.Issue(), this);
    advanced = true;
  }
  return advanced;
}

absl::StatusOr<bool> ReceiveStream::Credit(OperationContext& context, int64_t consumed, int64_t limit) {
  const int64_t slice = progress_.issued();
  if (slice >= std::min(limit, slicing_.slices())) return false;
  if (target_.ring_slices != 0 && slice >= consumed + target_.ring_slices) return false;
  context.wire.Want(context.priority);
  const size_t bytes = target_.Room(slicing_, slice);
  if (!context.wire.MayReceive(channel_.lane, phase_, context.priority, bytes, context.head)) return false;
  progress_.Issue();
  const auto length = target_.compressed ? WireLink::Length::kAtMost : WireLink::Length::kExact;
  WEFT_RETURN_IF_ERROR(context.wire.Receive(channel_, phase_, context.priority, context.record->descriptor,
                                            part_, {slice, target_.At(slicing_, slice), bytes, length},
                                            this));
  return true;
}

absl::Status ReceiveStream::SpeakIfEmpty(OperationContext& context) {
  if (slicing_.elements > 0 || spoken_) return absl::OkStatus();
  spoken_ = true;
  return context.wire.ExpectNothing(channel_, context.record->descriptor);
}

absl::StatusOr<bool> ReceiveStream::Step(OperationContext& context, int64_t consumed) {
  WEFT_RETURN_IF_ERROR(SpeakIfEmpty(context));
  bool advanced = false;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool credited, Credit(context, consumed, slicing_.slices()));
    if (!credited) return advanced;
    advanced = true;
  }
}

absl::StatusOr<bool> SendStream::Step(OperationContext& context, int64_t available) {
  if (heard_ && progress_.issued() == slicing_.slices()) return false;
  const bool knew = heard_;
  WEFT_ASSIGN_OR_RETURN(const int64_t asked, SlicesAskedFor(context, channel_, part_, heard_));
  const int64_t limit = std::min(available, asked);
  bool advanced = heard_ != knew;
  while (progress_.issued() < limit) {
    const int64_t slice = progress_.Issue();
    const size_t bytes = static_cast<size_t>(slicing_.Length(slice)) * source_.element_bytes;
    WEFT_RETURN_IF_ERROR(context.wire.Send(channel_, slice, source_.At(slicing_, slice), bytes, this));
    advanced = true;
  }
  return advanced;
}

absl::StatusOr<std::byte*> ScratchSlots::Take(BufferPool& pool) {
  if (!memory_) {
    WEFT_ASSIGN_OR_RETURN(memory_, pool.Acquire(static_cast<size_t>(count_) * bytes_));
    for (int i = 0; i < count_; ++i) free_.push_back(memory_.data() + static_cast<size_t>(i) * bytes_);
  }
  if (free_.empty()) return nullptr;
  std::byte* slot = free_.back();
  free_.pop_back();
  return slot;
}

MadeSendStream::Slot* MadeSendStream::Find(int64_t slice) {
  const auto it =
      std::find_if(held_.begin(), held_.end(), [&](const Slot& slot) { return slot.slice == slice; });
  WEFT_CHECK(it != held_.end(), "a slice lost its scratch");
  return &*it;
}

absl::Status MadeSendStream::Send(OperationContext& context, int64_t slice) {
  const std::byte* made = Find(slice)->memory;
  const size_t plain_bytes =
      static_cast<size_t>(source_->slicing().Length(slice)) * SizeOf(source_->made_dtype());
  const size_t bytes = source_->compresses() ? CompressedBytes(made) : plain_bytes;
  context.counters.wire_saved_bytes += static_cast<int64_t>(plain_bytes) - static_cast<int64_t>(bytes);
  return context.wire.Send(channel_, slice, made, bytes, this);
}

absl::StatusOr<bool> MadeSendStream::Step(OperationContext& context, int64_t available) {
  const Slicing& slicing = source_->slicing();
  const bool knew = heard_;
  WEFT_ASSIGN_OR_RETURN(const int64_t asked, SlicesAskedFor(context, channel_, part_, heard_));
  bool advanced = heard_ != knew;
  while (made_.issued() < std::min({asked, available, slicing.slices()})) {
    WEFT_ASSIGN_OR_RETURN(std::byte * slot, slots_.Take(context.scratch));
    if (slot == nullptr) break;
    const int64_t slice = made_.Issue();
    held_.push_back({slice, slot});
    source_->Issue(context, slice, slot, this);
    advanced = true;
  }
  while (sent_.issued() < made_.done()) {
    WEFT_RETURN_IF_ERROR(Send(context, sent_.Issue()));
    advanced = true;
  }
  return advanced;
}

void MadeSendStream::OnWireDone(int64_t slice) {
  Slot* slot = Find(slice);
  slots_.Return(slot->memory);
  *slot = held_.back();
  held_.pop_back();
  sent_.Finish(slice);
}

}  // namespace weft
