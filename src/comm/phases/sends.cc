#include "src/comm/phases/sends.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

// Number of slices, of the `slices` of a part, that the receiver has given credits for. Sets `responded` if a
// credit message has arrived.
// Errors: kFailedPrecondition (the receiver expects a part of another shape), kInternal (credits for more).
absl::StatusOr<int64_t> CreditedSlices(const OperationContext& context,
                                       const CreditScheduler::Channel& channel, const PartShape& part,
                                       int64_t slices, bool& responded) {
  const std::optional<CreditScheduler::Credit> credit = context.wire.CreditOf(channel);
  if (!credit) return 0;
  responded = true;
  if (credit->part == part && credit->slices <= slices) return credit->slices;
  if (credit->part == part) {
    return absl::InternalError(absl::StrCat("rank ", channel.peer, " has given credits for ", credit->slices,
                                            " slices of a part of ", slices, " in ",
                                            Describe(*context.record), kSameVersionRemedy));
  }
  const int own_rank = context.placement.BootstrapRank(context.placement.me());
  return PartMismatch(*context.record, own_rank, part, channel.peer, credit->part);
}

}  // namespace

absl::StatusOr<bool> SendStream::Step(OperationContext& context, int64_t available) {
  if (receiver_responded_ && progress_.issued() == slicing_.slices()) return false;
  const bool had_responded = receiver_responded_;
  WEFT_ASSIGN_OR_RETURN(const int64_t credited,
                        CreditedSlices(context, channel_, part_, slicing_.slices(), receiver_responded_));
  const int64_t limit = std::min(available, credited);
  bool advanced = receiver_responded_ != had_responded;
  while (progress_.issued() < limit) {
    const int64_t slice = progress_.issued();
    const int64_t slices = context.wire.SlicesOfMessage(channel_, slice);
    if (slice + slices > limit) break;
    progress_.Issue(slices);
    const size_t bytes = static_cast<size_t>(slicing_.Length(slice, slices)) * source_.element_bytes;
    WEFT_RETURN_IF_ERROR(
        context.wire.Send(channel_, slice, source_.At(slicing_, slice), bytes, this, slices));
    advanced = true;
  }
  return advanced;
}

absl::StatusOr<std::byte*> ScratchSlots::Take(OperationContext& context) {
  if (most_ == 0) most_ = static_cast<size_t>(RingSlices(context, pools_));
  if (free_.empty() && memory_.size() < most_) {
    absl::StatusOr<Buffer> memory = context.scratch.Acquire(bytes_);
    if (!memory.ok() && memory_.empty()) return memory.status();
    if (memory.ok()) {
      memory_.push_back(*std::move(memory));
      return memory_.back().data();
    }
    most_ = memory_.size();  // Those in use come back.
  }
  if (free_.empty()) return nullptr;
  std::byte* slot = free_.back();
  free_.pop_back();
  return slot;
}

std::vector<StagedSendStream::Slot>::iterator StagedSendStream::Find(int64_t slice) {
  const auto it =
      std::find_if(held_.begin(), held_.end(), [&](const Slot& slot) { return slot.slice == slice; });
  WEFT_CHECK(it != held_.end(), "a staged slice has no scratch slot");
  return it;
}

absl::Status StagedSendStream::Send(OperationContext& context, int64_t slice) {
  const std::byte* produced = source_->Produced(slice);
  const std::byte* staged = produced != nullptr ? produced : Find(slice)->memory;
  const size_t plain_bytes =
      static_cast<size_t>(BytesOf(source_->slicing().Length(slice), source_->element_dtype()));
  const size_t bytes = source_->encoding() == WireEncoding::kPlain ? plain_bytes : CompressedBytes(staged);
  context.counters.wire_saved_bytes += static_cast<int64_t>(plain_bytes) - static_cast<int64_t>(bytes);
  return context.wire.Send(channel_, slice, staged, bytes, this);
}

absl::StatusOr<bool> StagedSendStream::Step(OperationContext& context, int64_t available) {
  const Slicing& slicing = source_->slicing();
  const bool had_responded = receiver_responded_;
  WEFT_ASSIGN_OR_RETURN(const int64_t credited,
                        CreditedSlices(context, channel_, part_, slicing.slices(), receiver_responded_));
  bool advanced = receiver_responded_ != had_responded;
  awaits_slot_ = false;
  while (staged_.issued() < std::min({credited, available, slicing.slices()})) {
    if (source_->Produced(staged_.issued()) != nullptr) {
      staged_.Finish(staged_.Issue());
      advanced = true;
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(std::byte * slot, slots_.Take(context));
    awaits_slot_ = slot == nullptr;
    if (awaits_slot_) break;
    const int64_t slice = staged_.Issue();
    held_.push_back({slice, slot});
    source_->Issue(context, slice, slot, this);
    advanced = true;
  }
  while (sent_.issued() < staged_.done()) {
    WEFT_RETURN_IF_ERROR(Send(context, sent_.Issue()));
    advanced = true;
  }
  return advanced;
}

void StagedSendStream::OnWireDone(int64_t slice) {
  if (source_->Produced(slice) == nullptr) {
    const auto slot = Find(slice);
    slots_.Return(slot->memory);
    *slot = held_.back();
    held_.pop_back();
  }
  sent_.Finish(slice);
}

const OutgoingStream* Sends::AddPart(const CreditScheduler::Channel& channel, const OutgoingPart& part,
                                     ScratchSlots& slots) {
  const PartShape shape = PartShape::OneDim(part.slicing.elements);
  if (part.encoding == WireEncoding::kPlain && part.memory.ranges.empty()) {
    Add(std::make_unique<SendStream>(channel, part.slicing, part.memory));
  } else if (part.encoding == WireEncoding::kPlain) {
    auto packed = std::make_unique<PackStream>(part.slicing, part.dtype, part.memory);
    Add(std::make_unique<StagedSendStream>(channel, std::move(packed), shape, slots));
  } else {
    auto encoded = std::make_unique<CompressStream>(part.slicing, part.dtype, part.memory, part.delta_base);
    Add(std::make_unique<StagedSendStream>(channel, std::move(encoded), shape, slots));
  }
  return streams_.back().get();
}

absl::StatusOr<bool> Sends::Step(OperationContext& context, int64_t available) {
  const int64_t credit_messages =
      context.wire.CreditMessages(context.record->lane, context.record->descriptor.sequence);
  if (all_settled_ && credit_messages == credit_messages_ && available == available_) return false;
  credit_messages_ = credit_messages;
  available_ = available;
  all_settled_ = true;
  bool advanced = false;
  for (const auto& stream : streams_) {
    WEFT_ASSIGN_OR_RETURN(const bool sent, stream->Step(context, available));
    advanced |= sent;
    all_settled_ &= stream->is_settled();
  }
  return advanced;
}

bool Sends::finished() const {
  while (finished_ < streams_.size() && streams_[finished_]->finished()) ++finished_;
  return finished_ == streams_.size();
}

void Sends::AddAwaited(std::set<int>& ranks) const {
  for (const auto& stream : streams_) {
    if (!stream->finished()) ranks.insert(stream->peer());
  }
}

}  // namespace weft
