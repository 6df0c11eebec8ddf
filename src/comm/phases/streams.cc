#include "src/comm/phases/streams.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

void PushTask(OperationContext& context, TaskOwner* owner, int64_t ticket, TaskBody body,
              int64_t cross_domain_bytes = 0, int64_t slices = 1) {
  DataTask task{context.record, owner, ticket, context.priority, std::move(body), cross_domain_bytes};
  task.slices = slices;
  context.tasks.Push(std::move(task));
}

// Counts elements that are packed or unpacked.
void CountCopy(OperationContext& context, int64_t elements, DType dtype) {
  context.counters.copied_bytes += BytesOf(elements, dtype);
}

}  // namespace

int64_t RingSlices(const OperationContext& context, int64_t streams, RingUse use, int64_t slices) {
  constexpr int64_t kFewestInEach = 4;
  constexpr int64_t kFewestInAll = 16;
  constexpr int64_t kFewestInLongRings = 96;
  constexpr int64_t kShareOfFree = 4;
  const int64_t slice_bytes = context.options.slice_bytes;
  const bool is_reduction = use == RingUse::kReduction || use == RingUse::kReductionInRuns;
  const bool has_runs =
      use == RingUse::kReductionInRuns && context.wire.MayHaveRuns(context.priority, slice_bytes);
  const int64_t fewest = has_runs || (is_reduction && streams == 1) ? kFewestInLongRings : kFewestInAll;
  const int64_t budget = context.wire.budget_bytes() / slice_bytes;
  const int64_t rings = std::max<int64_t>(1, streams);
  const int64_t share =
      use == RingUse::kUneven ? std::min(budget, CreditPace::kShares * budget / rings) : budget / rings;
  const int64_t each = std::min(slices, std::max({kFewestInEach, fewest / rings, share}));
  if (each * rings <= kFewestInAll) return each;
  const auto free_bytes = static_cast<int64_t>(context.scratch.free_bytes());
  const int64_t most = std::max(free_bytes / kShareOfFree / slice_bytes, kFewestInAll);
  return std::clamp<int64_t>(most / rings, 1, each);
}

SliceMemory PartMemory(const PartLayout& parts, const WholeMemory& buffer, int member, size_t element_bytes) {
  // SliceMemory is mutable because it also describes targets.
  SliceMemory memory{const_cast<std::byte*>(buffer.base), element_bytes};
  if (buffer.views != nullptr) {
    memory.ranges = parts.ranges->part(member);
    memory.views = buffer.views;
    return memory;
  }
  int64_t begin = parts.offsets[static_cast<size_t>(member)];
  if (parts.ranges != nullptr) {
    const absl::Span<const PartRanges::PlacedRange> ranges = parts.ranges->part(member);
    begin = ranges.size() == 1 ? ranges[0].range.begin : 0;
    if (ranges.size() > 1) memory.ranges = ranges;
  }
  memory.base += static_cast<size_t>(begin) * element_bytes;
  return memory;
}

int64_t CopyStream::NextSlices(const OperationContext& context, int64_t available) const {
  const int64_t slice = progress_.issued();
  const int64_t left = std::min(available, slicing_.slices()) - slice;
  // The other user of a ring goes on after each slice.
  const bool has_ring = source_.ring_slices != 0 || target_.ring_slices != 0;
  if (left <= 1 || has_ring) return std::min<int64_t>(left, 1);
  const int64_t most = context.wire.LongestRun(context.priority, slicing_.SliceBytes(dtype_));
  return target_.LongestRun(slice, source_.LongestRun(slice, std::min(left, most)));
}

bool CopyStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (true) {
    const int64_t slices = NextSlices(context, available);
    if (slices <= 0 || progress_.outstanding() >= kPiecesInFlight * slices) return advanced;
    Issue(context, slices);
    advanced = true;
  }
}

void CopyStream::Issue(OperationContext& context, int64_t slices) {
  const int64_t slice = progress_.Issue(slices);
  if (is_from_ring_) {
    const bool is_plain = source_.encoding == WireEncoding::kPlain;
    if (!target_.PlaceOf(slicing_, slice).is_contiguous()) {
      CountCopy(context, slicing_.Length(slice), dtype_);
    } else if (is_plain) {
      progress_.Finish(slice);  // It was received into the target.
      return;
    }
  }
  const int64_t bytes = BytesOf(slicing_.Length(slice, slices), dtype_);
  PushTask(context, this, slice, BodyOf(slice, slices), crosses_domains_ ? bytes : 0, slices);
}

TaskBody CopyStream::BodyOf(int64_t slice, int64_t slices) const {
  const SlicePlace source = source_.PlaceOf(slicing_, slice, slices);
  const SlicePlace target = target_.PlaceOf(slicing_, slice, slices);
  const int64_t count = slicing_.Length(slice, slices);
  if (source_.encoding != WireEncoding::kPlain) {
    return DecodeTask{dtype_, source_.encoding, source.data, target, count};
  }
  if (!source.is_contiguous() || !target.is_contiguous()) {
    return RangesCopyTask{source, target, count, source_.element_bytes, nontemporal_};
  }
  return CopyTask{source.data, target.data, static_cast<size_t>(count) * source_.element_bytes, nontemporal_};
}

void PackStream::Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) {
  const int64_t count = slicing_.Length(slice);
  CountCopy(context, count, dtype_);
  PushTask(context, owner, slice,
           RangesCopyTask{source_.PlaceOf(slicing_, slice), target, count, source_.element_bytes,
                          /*nontemporal=*/false});
}

void CompressStream::Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) {
  const std::byte* base = delta_base_ ? delta_base_->At(slicing_, slice) : nullptr;
  const SlicePlace source = source_.PlaceOf(slicing_, slice);
  if (!source.is_contiguous()) CountCopy(context, slicing_.Length(slice), dtype_);
  PushTask(context, owner, slice, EncodeTask{dtype_, source, base, target, slicing_.Length(slice)});
}

TaskBody RangeStream::BodyOf(int64_t slice, int64_t slices, std::byte* target) const {
  return StridedCopyTask{&copy_, source_.At(slicing_, slice), target, slicing_.Begin(slice),
                         slicing_.Length(slice, slices)};
}

void RangeStream::Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) {
  PushTask(context, owner, slice, BodyOf(slice, /*slices=*/1, target));
}

int64_t RangeStream::NextSlices(const OperationContext& context, int64_t available) const {
  const int64_t slice = progress_.issued();
  const int64_t left = std::min(available, slicing_.slices()) - slice;
  if (left <= 1) return left;
  // A strided copy takes longer than a plain one.
  int64_t most = context.wire.LongestRun(context.priority, slicing_.SliceBytes(copy_.dtype())) / 2;
  if (source_.ring_slices != 0) most = std::min(most, source_.ring_slices / CreditScheduler::kRunsOfRing);
  return source_.LongestRun(slice, std::clamp<int64_t>(most, 1, left));
}

bool RangeStream::Step(OperationContext& context, int64_t available) {
  bool advanced = false;
  while (true) {
    const int64_t slices = NextSlices(context, available);
    if (slices <= 0 || progress_.outstanding() >= kPiecesInFlight * slices) return advanced;
    const int64_t slice = progress_.Issue(slices);
    PushTask(context, this, slice, BodyOf(slice, slices, target_), /*cross_domain_bytes=*/0, slices);
    advanced = true;
  }
}

void ReduceStream::IssueAs(OperationContext& context, int64_t ticket, int64_t slice, std::byte* target,
                           TaskOwner* owner) {
  ReduceTarget single = target_;
  single.data = target;
  single.copies.clear();
  Push(context, slice, /*slices=*/1, std::move(single), /*crossing_outputs=*/0, {owner, ticket});
}

int64_t ReduceStream::CrossingBytes(int crossing_outputs) const {
  int64_t bytes = BytesOf(crossing_outputs, target_.dtype);
  for (const Leaf& leaf : leaves_) {
    if (leaf.crosses_domains) bytes += static_cast<int64_t>(SizeOf(leaf.dtype));
  }
  return bytes;
}

void ReduceStream::CountCrossing(const OperationContext& context) const {
  context.counters.cross_domain_bytes += CrossingBytes(crossing_outputs_) * slicing_.elements;
}

int64_t ReduceStream::MovedBytes() const {
  int64_t bytes = slicing_.SliceBytes(target_.dtype) * static_cast<int64_t>(1 + target_.copies.size());
  for (const Leaf& leaf : leaves_) bytes += slicing_.SliceBytes(leaf.dtype);
  return bytes;
}

int64_t ReduceStream::LongestRun(int64_t slice, int64_t slices) const {
  if (target_.encoding != WireEncoding::kPlain) return 1;
  for (const Leaf& leaf : leaves_) slices = leaf.memory.LongestRun(slice, slices);
  return slices;
}

void ReduceStream::Push(OperationContext& context, int64_t slice, int64_t slices, ReduceTarget target,
                        int crossing_outputs, Completion completion) {
  ReduceTask task{&program_, {}, op_, std::move(target), slicing_.Length(slice, slices)};
  for (const Leaf& leaf : leaves_) {
    const SlicePlace place = leaf.memory.PlaceOf(slicing_, slice, slices);
    task.leaves.push_back(
        {place.data, leaf.dtype, leaf.memory.encoding, !place.is_contiguous(), place.views});
    if (place.is_contiguous()) continue;
    task.ranges = place.ranges;
    task.first = place.first;
  }
  PushTask(context, completion.owner, completion.ticket, std::move(task),
           CrossingBytes(crossing_outputs) * slicing_.Length(slice, slices), slices);
}

void ReduceStream::IssueToTarget(OperationContext& context, int64_t slice, TaskOwner* owner, int64_t slices) {
  const auto address_in = [&](std::byte* run) {
    return SliceMemory{run, SizeOf(target_.dtype)}.At(slicing_, slice);
  };
  ReduceTarget target = target_;
  target.data = address_in(target_.data);
  std::transform(target_.copies.begin(), target_.copies.end(), target.copies.begin(), address_in);
  Push(context, slice, slices, std::move(target), crossing_outputs_, {owner, slice});
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

std::byte* ReceiveStream::AddressOf(int64_t slice) const {
  if (!ring_) return target_.At(slicing_, slice);
  const SlicePlace place = target_.PlaceOf(slicing_, slice);
  return place.is_contiguous() ? place.data : ring_->At(slicing_, slice);
}

int64_t ReceiveStream::LongestRun(const OperationContext& context, const Bounds& bounds) const {
  if (!receives_runs_) return 1;
  const int64_t slice = issued();
  if (!bounds.started && slice < CreditScheduler::kSilentSlices) return 1;
  const int64_t left = slicing_.slices() - slice;
  int64_t slices = std::min({context.wire.LongestRun(context.priority, static_cast<int64_t>(BytesOf(1))),
                             left / CreditScheduler::kRunsOfRest, bounds.limit - slice});
  if (const int64_t ring = ring_slices(); ring != 0)
    slices = std::min({slices, ring / CreditScheduler::kRunsOfRing, ring - slice % ring});
  return slices < CreditScheduler::kFewestInRun ? 1 : slices;
}

void ReceiveStream::KeepPace(CreditPace& pace) {
  pace_ = &pace;
  if (slicing_.elements > 0) pace.AddStream();
}

bool ReceiveStream::KeepsPace(const OperationContext& context, size_t bytes) const {
  if (pace_ == nullptr) return true;
  const auto slice_bytes =
      static_cast<int64_t>(SliceCapacity(target_.encoding, target_.element_bytes, slicing_.slice_elements));
  const bool admitted = context.wire.Admits(*pace_, slice_bytes * in_flight() + static_cast<int64_t>(bytes));
  return admitted || in_flight() == 0;
}

bool ReceiveStream::HasRoom(const OperationContext& context, const Bounds& bounds, int64_t slices) const {
  const int64_t slots = context.wire.rules().runs_await_their_slots ? slices : 1;
  if (ring_slices() != 0 && issued() + slots > bounds.consumed + ring_slices()) return false;
  const size_t bytes = BytesOf(slices);
  if (!KeepsPace(context, bytes)) return false;
  const bool runs_ahead = !bounds.started && issued() >= CreditScheduler::kSilentSlices;
  if (runs_ahead && !context.wire.MayRunAhead(context.priority, bytes)) return false;
  return context.wire.MayReceive(channel_.lane, phase_, context.priority, bytes, slices);
}

int64_t ReceiveStream::NextSlices(const OperationContext& context, const Bounds& bounds) const {
  const int64_t run = LongestRun(context, bounds);
  if (HasRoom(context, bounds, run)) return run;
  if (run == 1 || progress_.outstanding() >= run) return 0;
  return HasRoom(context, bounds, 1) ? 1 : 0;
}

void ReceiveStream::CheckPeerStarted(const OperationContext& context) {
  if (!ran_ahead_ || !SenderHasStarted(context)) return;
  ran_ahead_ = false;
  context.wire.CountInSharedWindows(channel_);
}

absl::StatusOr<bool> ReceiveStream::Credit(OperationContext& context, int64_t consumed, int64_t limit) {
  const int64_t slice = progress_.issued();
  CheckPeerStarted(context);
  if (slice >= std::min(limit, slicing_.slices())) return false;
  if (ring_slices() != 0 && slice >= consumed + ring_slices()) return false;
  const bool started = SenderHasStarted(context);
  if (started) context.wire.RegisterDemand(context.priority);
  const int64_t slices = NextSlices(context, {consumed, limit, started});
  if (slices == 0) return false;
  const size_t bytes = BytesOf(slices);
  progress_.Issue(slices);
  if (pace_ != nullptr) {
    pace_->Count(static_cast<int64_t>(bytes));
    if (is_credited()) pace_->RemoveStream();
  }
  ran_ahead_ |= !started;
  const auto length =
      target_.encoding == WireEncoding::kPlain ? WireLink::Length::kExact : WireLink::Length::kAtMost;
  WEFT_RETURN_IF_ERROR(context.wire.Receive(channel_, phase_, context.priority, context.record->descriptor,
                                            part_, {slice, AddressOf(slice), bytes, length, started, slices},
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
    WEFT_ASSIGN_OR_RETURN(const bool credited, Credit(context, consumed, kAllSlices));
    if (!credited) return advanced;
    advanced = true;
  }
}

}  // namespace weft
