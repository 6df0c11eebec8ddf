#include "src/comm/messages/transfers.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr std::string_view kOutsideOfMemory = "whose address is not in node memory";

SliceMemory Bytes(const std::byte* memory, int64_t ring_pieces = 0) {
  // SliceMemory has no const form. Sources are only read.
  return {const_cast<std::byte*>(memory), 1, ring_pieces};
}

CopyStream Copy(Slicing slicing, SliceMemory source, SliceMemory target) {
  return {slicing, DType::kU8, source, target, /*nontemporal=*/false};
}

CreditScheduler::Channel ChannelOf(int peer, uint64_t number) {
  return {kMessageLane, number, peer, static_cast<int>(number % TagLayout::kMessages)};
}

}  // namespace

NodeAddress MessageBufferAddress(const NodeLink& node, const std::byte* data, int64_t bytes) {
  if (bytes == 0) return Descriptor::kNoAddress;
  return node.AddressOf(data, static_cast<size_t>(bytes)).value_or(Descriptor::kNoAddress);
}

CreditScheduler::Channel OutgoingMessage::channel() const { return ChannelOf(message().peer, number()); }

Signal OutgoingMessage::Announcement(const NodeLink& node) const {
  Signal signal;
  signal.kind = SignalKind::kAnnounce;
  signal.tag = message().tag;
  signal.number = number();
  signal.channel = message().channel;
  signal.identity = record_->descriptor.identity;
  signal.dtype = record_->descriptor.dtype;
  signal.elements = record_->descriptor.elements;
  signal.bytes = message().bytes;
  if (!is_remote_) signal.address = MessageBufferAddress(node, message().data, message().bytes);
  return signal;
}

void OutgoingMessage::OnCredit(const OperationContext& context) {
  granted_ = true;
  if (sending_) return;
  sending_.emplace(channel(), Slicing{message().bytes, context.options.slice_bytes}, Bytes(message().data));
}

absl::Status OutgoingMessage::OnSignal(OperationContext& context, const Signal& signal) {
  const auto unexpected = [&](std::string_view problem) {
    return UnexpectedSignal(message().peer, signal, problem);
  };
  if (is_remote_) return unexpected("which goes to another node");
  if (signal.kind == SignalKind::kConsumed) {
    if (signal.pieces <= consumed_ || signal.pieces > staged_)
      return unexpected(absl::StrCat("for ", signal.pieces, " pieces of the ", staged_, " that are staged"));
    consumed_ = signal.pieces;
    return absl::OkStatus();
  }
  if (granted_) return unexpected("which has been granted before");
  granted_ = true;
  if (signal.kind == SignalKind::kPulled) {
    finished_ = true;
  } else if (signal.address != Descriptor::kNoAddress) {
    if (!context.node.Holds(signal.address, message().bytes)) return unexpected(kOutsideOfMemory);
    copying_.emplace(Copy({message().bytes, context.options.piece_bytes}, Bytes(message().data),
                          Bytes(context.node.Map(signal.address))));
  } else {
    return Stage(context);
  }
  return absl::OkStatus();
}

absl::Status OutgoingMessage::Stage(OperationContext& context) {
  const Slicing slicing{message().bytes, context.options.piece_bytes};
  pieces_ = slicing.slices();
  const int64_t ring_bytes = std::min(message().bytes, kRingPieces * slicing.slice_elements);
  WEFT_ASSIGN_OR_RETURN(ring_, context.scratch.Acquire(static_cast<size_t>(ring_bytes)));
  context.counters.copied_bytes += message().bytes;
  copying_.emplace(Copy(slicing, Bytes(message().data), Bytes(ring_.data(), kRingPieces)));
  return absl::OkStatus();
}

absl::StatusOr<bool> OutgoingMessage::Step(OperationContext& context, SignalSender& signals,
                                           bool awaits_receiver) {
  if (sending_) {
    WEFT_ASSIGN_OR_RETURN(const bool advanced, sending_->Step(context, kAllSlices));
    finished_ = sending_->finished();
    return advanced || finished_;
  }
  if (ring_) return StepStaging(context, signals, awaits_receiver);
  if (!copying_) return false;
  const bool advanced = copying_->Step(context, kAllSlices);
  if (!copying_->finished()) return advanced;
  finished_ = true;
  Signal pushed;
  pushed.kind = SignalKind::kPushed;
  pushed.number = number();
  WEFT_RETURN_IF_ERROR(signals.Send(message().peer, pushed));
  return true;
}

absl::StatusOr<bool> OutgoingMessage::StepStaging(OperationContext& context, SignalSender& signals,
                                                  bool awaits_receiver) {
  bool advanced = copying_->Step(context, awaits_receiver ? consumed_ + kRingPieces : kAllSlices);
  if (copying_->done() > staged_) {
    staged_ = copying_->done();
    Signal staged;
    staged.kind = SignalKind::kStaged;
    staged.number = number();
    staged.pieces = staged_;
    staged.address = *context.node.AddressOf(ring_.data());
    WEFT_RETURN_IF_ERROR(signals.Send(message().peer, staged));
    advanced = true;
  }
  finished_ = consumed_ == pieces_;
  return advanced || finished_;
}

CreditScheduler::Channel IncomingMessage::channel() const { return ChannelOf(source_, number()); }

absl::Status IncomingMessage::Reply(SignalSender& signals, SignalKind kind, int64_t pieces,
                                    NodeAddress address) const {
  Signal signal;
  signal.kind = kind;
  signal.number = number();
  signal.pieces = pieces;
  signal.address = address;
  return signals.Send(source_, signal);
}

absl::Status IncomingMessage::Begin(OperationContext& context, SignalSender& signals,
                                    const std::byte* own_source) {
  begun_ = true;
  if (is_remote_) {
    context.wire.NoteStarted(channel());
    receiving_.emplace(channel(), WirePhase::kGather, SlicingOf(context.options.slice_bytes),
                       Bytes(target()));
    receiving_->ReceiveRuns();
    return absl::OkStatus();
  }
  const Slicing pieces = SlicingOf(context.options.piece_bytes);
  const std::byte* source = own_source;
  if (announcement_.address != Descriptor::kNoAddress) {
    if (!context.node.Holds(announcement_.address, announcement_.bytes))
      return UnexpectedSignal(source_, announcement_, kOutsideOfMemory);
    source = context.node.Map(announcement_.address);
  }
  if (source == nullptr && announcement_.bytes > 0) {
    granted_ = true;
    return Reply(signals, SignalKind::kGrant, 0,
                 MessageBufferAddress(context.node, target(), announcement_.bytes));
  }
  copying_.emplace(Copy(pieces, Bytes(source), Bytes(target())));
  return absl::OkStatus();
}

absl::Status IncomingMessage::OnSignal(OperationContext& context, const Signal& signal) {
  const auto unexpected = [&](std::string_view problem) {
    return UnexpectedSignal(source_, signal, problem);
  };
  if (!granted_ || finished_) return unexpected("which awaits no data");
  if (signal.kind == SignalKind::kPushed) {
    if (from_ring_) return unexpected("whose data is staged");
    finished_ = true;
    return absl::OkStatus();
  }
  const Slicing pieces = SlicingOf(context.options.piece_bytes);
  if (signal.pieces <= staged_ || signal.pieces > pieces.slices())
    return unexpected(absl::StrCat("for ", signal.pieces, " pieces of ", pieces.slices()));
  if (!copying_) {
    // Piece sizes are equal on all ranks.
    const int64_t ring_bytes = std::min(announcement_.bytes, kRingPieces * pieces.slice_elements);
    if (!context.node.Holds(signal.address, ring_bytes)) return unexpected(kOutsideOfMemory);
    from_ring_ = true;
    copying_.emplace(Copy(pieces, Bytes(context.node.Map(signal.address), kRingPieces), Bytes(target())));
  }
  staged_ = signal.pieces;
  return absl::OkStatus();
}

absl::StatusOr<bool> IncomingMessage::Step(OperationContext& context, SignalSender& signals) {
  if (receiving_) {
    WEFT_ASSIGN_OR_RETURN(const bool advanced, receiving_->Step(context, kAllSlices));
    finished_ = receiving_->finished();
    return advanced || finished_;
  }
  if (!copying_) return false;
  bool advanced = copying_->Step(context, from_ring_ ? staged_ : kAllSlices);
  if (from_ring_ && copying_->done() > consumed_) {
    consumed_ = copying_->done();
    WEFT_RETURN_IF_ERROR(Reply(signals, SignalKind::kConsumed, consumed_, Descriptor::kNoAddress));
    advanced = true;
  }
  if (!copying_->finished()) return advanced;
  finished_ = true;
  if (!from_ring_) WEFT_RETURN_IF_ERROR(Reply(signals, SignalKind::kPulled, 0, Descriptor::kNoAddress));
  return true;
}

}  // namespace weft
