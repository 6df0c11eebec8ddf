// Streams that send slices to remote ranks, either directly from memory or staged in scratch.
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/phases/streams.h"

namespace weft {

// Interface of a stream that sends slices to a remote peer against the peer's credits.
class OutgoingStream : public WireOwner {
 public:
  virtual ~OutgoingStream() = default;
  // Advances. Returns true if anything moved. `available`: slices of the source that may be read.
  virtual absl::StatusOr<bool> Step(OperationContext& context, int64_t available) = 0;
  // True once all slices are sent and the peer has responded. See Note [Empty parts].
  virtual bool finished() const = 0;
  virtual int peer() const = 0;
  // Slices, counted from the first, that the stream has finished reading from its source.
  virtual int64_t read_slices() const = 0;
  // True if a step can only advance after a new credit, or when more slices are available.
  virtual bool is_settled() const { return true; }
};

// Sends slices to a remote peer directly from memory.
//
// Note [Empty parts]
// Problem: if two ranks disagree on which of their parts is empty, each may have nothing to send and nothing
// to receive. Then neither would see the other's descriptor, and the mismatch would stay undetected.
// Rule: a rank that expects an empty part announces that with a credit message for 0 slices. The sender is
// not finished until it has received a credit message on the channel.
// Why it suffices: each rank of a pair then gets the other's descriptor. The outputs do not depend on the
// announcement, so an operation may be *ready* before it has arrived, but not *released*.
class SendStream final : public OutgoingStream {
 public:
  SendStream(CreditScheduler::Channel channel, Slicing slicing, SliceMemory source)
      : SendStream(channel, slicing, source, PartShape::OneDim(slicing.elements)) {}
  SendStream(CreditScheduler::Channel channel, Slicing slicing, SliceMemory source, PartShape part)
      : channel_(channel), slicing_(slicing), source_(source), part_(part) {}

  absl::StatusOr<bool> Step(OperationContext& context, int64_t available) override;
  bool finished() const override { return receiver_responded_ && progress_.done() == slicing_.slices(); }
  int peer() const override { return channel_.peer; }
  int64_t read_slices() const override { return progress_.done(); }
  void OnWireDone(int64_t slice) override { progress_.Finish(slice); }

 private:
  CreditScheduler::Channel channel_;
  Slicing slicing_;
  SliceMemory source_;
  PartShape part_;
  PrefixCounter progress_;
  bool receiver_responded_ = false;  // A credit message has arrived.
};

// Pool of scratch slots for the staged slices of one phase of an operation, which its send streams share.
class ScratchSlots {
 public:
  // Slots of `bytes` bytes. The memory of each is acquired when all others are in use, until the slots of
  // `pools` such pools are as many as the slices of the rings of one stream, or there is no more memory.
  explicit ScratchSlots(size_t bytes, int64_t pools = 1) : bytes_(bytes), pools_(pools) {}
  // Returns a free slot, or null if all are in use. Errors: kResourceExhausted (no scratch for a single one).
  absl::StatusOr<std::byte*> Take(OperationContext& context);
  void Return(std::byte* slot) { free_.push_back(slot); }

 private:
  size_t bytes_;
  int64_t pools_;
  size_t most_ = 0;  // Slots that may be acquired. 0 until the first is taken.
  std::vector<Buffer> memory_;
  std::vector<std::byte*> free_;
};

// Stages slices in scratch, unless the source has them in memory, when the remote peer gives credits for
// them, and then sends them. Used for partial sums, strided tensors and encoded slices.
class StagedSendStream final : public TaskOwner, public OutgoingStream {
 public:
  StagedSendStream(CreditScheduler::Channel channel, std::unique_ptr<SliceSource> source, PartShape part,
                   ScratchSlots& slots)
      : channel_(channel), source_(std::move(source)), part_(part), slots_(slots) {}

  absl::StatusOr<bool> Step(OperationContext& context, int64_t available) override;
  bool finished() const override {
    return receiver_responded_ && sent_.done() == source_->slicing().slices();
  }
  int peer() const override { return channel_.peer; }
  int64_t read_slices() const override { return staged_.done(); }
  bool is_settled() const override {
    return !awaits_slot_ && staged_.outstanding() == 0 && sent_.issued() == staged_.done();
  }
  void OnTaskDone(int64_t ticket) override { staged_.Finish(ticket); }
  void OnWireDone(int64_t slice) override;

 private:
  struct Slot {
    int64_t slice;
    std::byte* memory;
  };
  std::vector<Slot>::iterator Find(int64_t slice);
  absl::Status Send(OperationContext& context, int64_t slice);

  CreditScheduler::Channel channel_;
  std::unique_ptr<SliceSource> source_;
  PartShape part_;
  ScratchSlots& slots_;
  std::vector<Slot> held_;  // Slots of slices that are being staged or sent.
  PrefixCounter staged_;
  PrefixCounter sent_;
  bool receiver_responded_ = false;
  bool awaits_slot_ = false;  // All scratch slots are in use.
};

// A part in memory, and its encoding on the wire.
struct OutgoingPart {
  Slicing slicing;
  DType dtype;
  SliceMemory memory;
  WireEncoding encoding;
  std::optional<SliceMemory> delta_base = std::nullopt;  // The base, for WireEncoding::kDelta.
};

// The send streams of one phase of an operation.
class Sends {
 public:
  void Add(std::unique_ptr<OutgoingStream> stream) { streams_.push_back(std::move(stream)); }
  // Adds the stream of a part, and returns it. `slots` is the scratch of encoded and packed slices.
  const OutgoingStream* AddPart(const CreditScheduler::Channel& channel, const OutgoingPart& part,
                                ScratchSlots& slots);

  // Advances all streams. A step costs nothing if nothing has changed since the last one. Returns true if
  // anything moved. `available`: slices of each source that may be read.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t available = kAllSlices);
  bool finished() const;
  // Adds the bootstrap ranks of the peers of unfinished streams.
  void AddAwaited(std::set<int>& ranks) const;

 private:
  std::vector<std::unique_ptr<OutgoingStream>> streams_;
  // State of the last step that stepped the streams.
  bool all_settled_ = false;
  int64_t credit_messages_ = 0;
  int64_t available_ = 0;
  mutable size_t finished_ = 0;  // The first streams, which have finished.
};

}  // namespace weft
