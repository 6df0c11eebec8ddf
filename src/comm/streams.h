// The moving parts that collectives are made of. A stream moves one run of elements from somewhere to
// somewhere, slice by slice, and says how many slices are done from the start; the next stream in line starts
// a slice when it is.
//
// Thread safety: the core's lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/operation.h"
#include "src/comm/slice_codec.h"

namespace weft {

// A run of elements cut into slices. Positions are slice numbers.
struct Slicing {
  int64_t elements = 0;
  int64_t slice_elements = 1;

  int64_t slices() const { return (elements + slice_elements - 1) / slice_elements; }
  int64_t Begin(int64_t slice) const { return slice * slice_elements; }
  int64_t Length(int64_t slice) const { return std::min(slice_elements, elements - Begin(slice)); }
};

// Slices that finish out of order, counted from the start.
class PrefixCounter {
 public:
  int64_t issued() const { return issued_; }
  int64_t done() const { return done_; }
  int64_t outstanding() const { return issued_ - done_ - static_cast<int64_t>(ahead_.size()); }
  int64_t Issue() { return issued_++; }
  void Finish(int64_t slice);

 private:
  int64_t issued_ = 0;
  int64_t done_ = 0;
  std::vector<int64_t> ahead_;  // Finished, but not all before them.
};

// Most pieces of one stream that wait in the task queue or are being run.
inline constexpr int64_t kPiecesInFlight = 2;

// Scratch is cut at cache lines.
constexpr size_t CacheLines(size_t bytes) {
  constexpr size_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

// Slices of one of so many streams that may be in a receiver's scratch: of few streams as many as keep the
// wire busy while threads wait for a core.
constexpr int64_t RingSlices(int64_t streams) {
  constexpr int64_t kTogether = 16;
  constexpr int64_t kLeast = 4;
  return std::max(kLeast, kTogether / std::max<int64_t>(1, streams));
}
// Slices of all of an operation's streams that may be in a sender's scratch.
inline constexpr int kSenderSlots = 16;

// Memory that is addressed by slice: the run itself, or a ring of a few slices, which may be compressed.
struct SliceMemory {
  // A strided tensor, in which a RangeCopy finds its way from the first element.
  static SliceMemory Strided(std::byte* base) { return {base, 0}; }

  std::byte* base = nullptr;
  size_t element_bytes = 1;
  int64_t ring_slices = 0;  // 0: the whole run.
  bool compressed = false;

  std::byte* At(const Slicing& slicing, int64_t slice) const {
    const int64_t place = ring_slices == 0 ? slice : slice % ring_slices;
    if (compressed) return base + static_cast<size_t>(place) * SlotBytes(slicing);
    return base + static_cast<size_t>(slicing.Begin(place)) * element_bytes;
  }
  // Most that a slice takes.
  size_t Room(const Slicing& slicing, int64_t slice) const {
    const int64_t elements = slicing.Length(slice);
    return compressed ? CompressedCapacity(element_bytes, elements)
                      : static_cast<size_t>(elements) * element_bytes;
  }
  // What a slice that is made, or received, takes turns in: the largest one's room.
  size_t SlotBytes(const Slicing& slicing) const {
    return slicing.elements == 0 ? 0 : CacheLines(Room(slicing, 0));
  }
  // What a ring takes in all.
  size_t RingBytes(const Slicing& slicing) const {
    return static_cast<size_t>(std::min(ring_slices, slicing.slices())) * SlotBytes(slicing);
  }
};

// Copies within the node. What it copies from may be compressed, and then is not what it leaves.
class CopyStream final : public TaskOwner {
 public:
  CopyStream(Slicing slicing, DType dtype, SliceMemory source, SliceMemory target, bool nontemporal)
      : slicing_(slicing), dtype_(dtype), source_(source), target_(target), nontemporal_(nontemporal) {}

  // `available`: slices of the source that may be read.
  bool Step(OperationContext& context, int64_t available);
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  Slicing slicing_;
  DType dtype_;
  SliceMemory source_;
  SliceMemory target_;
  bool nontemporal_;
  PrefixCounter progress_;
};

// What makes slices on demand.
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  virtual const Slicing& slicing() const = 0;
  // Of the elements that it makes.
  virtual DType made_dtype() const = 0;
  virtual bool compresses() const = 0;
  // One slice into memory of the caller's choice, whose end `owner` is told of.
  virtual void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) = 0;
};

// Copies between strided tensors of the node, or between one and slices that travel.
class RangeStream final : public TaskOwner, public SliceSource {
 public:
  RangeStream(RangeCopy copy, int64_t slice_elements, SliceMemory source, std::byte* target)
      : copy_(std::move(copy)),
        slicing_{copy_.elements(), slice_elements},
        source_(source),
        target_(target) {}

  // `available`: slices of the source that may be read.
  bool Step(OperationContext& context, int64_t available);
  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  const Slicing& slicing() const override { return slicing_; }
  DType made_dtype() const override { return copy_.dtype(); }
  bool compresses() const override { return false; }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  RangeCopy copy_;
  Slicing slicing_;
  SliceMemory source_;
  std::byte* target_;
  PrefixCounter progress_;
};

// Compresses slices of memory.
class CompressStream final : public SliceSource {
 public:
  CompressStream(Slicing slicing, DType dtype, SliceMemory source)
      : slicing_(slicing), dtype_(dtype), source_(source) {}

  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  const Slicing& slicing() const override { return slicing_; }
  DType made_dtype() const override { return dtype_; }
  bool compresses() const override { return true; }

 private:
  Slicing slicing_;
  DType dtype_;
  SliceMemory source_;
};

// Evaluates a reduction program over leaves in memory.
class ReduceStream final : public TaskOwner, public SliceSource {
 public:
  struct Leaf {
    SliceMemory memory;
    DType dtype;
  };
  ReduceStream(Slicing slicing, ReduceProgram program, std::vector<Leaf> leaves, ReduceOp op,
               ReduceTarget target)
      : slicing_(slicing),
        program_(std::move(program)),
        leaves_(std::move(leaves)),
        op_(op),
        target_(std::move(target)) {}

  // `available`: slices of all leaves that may be read.
  bool Step(OperationContext& context, int64_t available);
  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  // One slice to its place in the target, and in its copies.
  void IssueInPlace(OperationContext& context, int64_t slice, TaskOwner* owner);
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  const Slicing& slicing() const override { return slicing_; }
  DType made_dtype() const override { return target_.dtype; }
  bool compresses() const override { return target_.compressed; }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  void Push(OperationContext& context, int64_t slice, ReduceTarget target, TaskOwner* owner);

  Slicing slicing_;
  ReduceProgram program_;
  std::vector<Leaf> leaves_;
  ReduceOp op_;
  ReduceTarget target_;
  PrefixCounter progress_;
};

// Slices from a peer of another node into memory, against credits that this stream gives.
class ReceiveStream final : public WireOwner {
 public:
  ReceiveStream(WireDesk::Channel channel, WirePhase phase, Slicing slicing, SliceMemory target)
      : ReceiveStream(channel, phase, slicing, target, PartShape::Run(slicing.elements)) {}
  ReceiveStream(WireDesk::Channel channel, WirePhase phase, Slicing slicing, SliceMemory target,
                PartShape part)
      : channel_(channel), phase_(phase), slicing_(slicing), target_(target), part_(part) {}

  // `consumed`: slices whose place in a ring may be overwritten.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t consumed);
  // An empty stream says once that it expects nothing. See Note [Empty parts].
  absl::Status SpeakIfEmpty(OperationContext& context);
  // Gives a credit for the next slice if it is at most `limit`. False if the window or the ring is full.
  absl::StatusOr<bool> Credit(OperationContext& context, int64_t consumed, int64_t limit);
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  int peer() const { return channel_.peer; }
  void OnWireDone(int64_t slice) override { progress_.Finish(slice); }

 private:
  WireDesk::Channel channel_;
  WirePhase phase_;
  Slicing slicing_;
  SliceMemory target_;
  PartShape part_;
  PrefixCounter progress_;
  bool spoken_ = false;
};

// Slices of memory to a peer of another node, as it gives credits.
//
// Note [Empty parts]
// A rank that expects nothing of a peer says so, and the peer keeps the operation until it has heard that.
// Else two ranks that disagree on whose part is empty would both have nothing to wait for: neither would ever
// see the other's descriptor. An operation may be *ready* before, as its outputs do not depend on it; it is
// not *released*.
class SendStream final : public WireOwner {
 public:
  SendStream(WireDesk::Channel channel, Slicing slicing, SliceMemory source)
      : SendStream(channel, slicing, source, PartShape::Run(slicing.elements)) {}
  SendStream(WireDesk::Channel channel, Slicing slicing, SliceMemory source, PartShape part)
      : channel_(channel), slicing_(slicing), source_(source), part_(part) {}

  absl::StatusOr<bool> Step(OperationContext& context, int64_t available);
  bool finished() const { return heard_ && progress_.done() == slicing_.slices(); }
  int peer() const { return channel_.peer; }
  void OnWireDone(int64_t slice) override { progress_.Finish(slice); }

 private:
  WireDesk::Channel channel_;
  Slicing slicing_;
  SliceMemory source_;
  PartShape part_;
  PrefixCounter progress_;
  bool heard_ = false;
};

// Slots of scratch that the slices which one operation makes for the wire take turns in.
class ScratchSlots {
 public:
  // Memory for `count` slots of `bytes`, taken at first use.
  ScratchSlots(int count, size_t bytes) : count_(count), bytes_(bytes) {}
  // A free slot, or null if all are taken.
  absl::StatusOr<std::byte*> Take(BufferPool& pool);
  void Return(std::byte* slot) { free_.push_back(slot); }

 private:
  int count_;
  size_t bytes_;
  Buffer memory_;
  std::vector<std::byte*> free_;
};

// Slices for a peer of another node that do not lie anywhere yet (this node's partial of a reduction, a
// tensor with gaps, a compressed slice): made when a credit asks for them, then sent.
class MadeSendStream final : public TaskOwner, public WireOwner {
 public:
  MadeSendStream(WireDesk::Channel channel, std::unique_ptr<SliceSource> source, PartShape part,
                 ScratchSlots& slots)
      : channel_(channel), source_(std::move(source)), part_(part), slots_(slots) {}

  // `available`: slices that may be made.
  absl::StatusOr<bool> Step(OperationContext& context,
                            int64_t available = std::numeric_limits<int64_t>::max());
  bool finished() const { return heard_ && sent_.done() == source_->slicing().slices(); }
  int peer() const { return channel_.peer; }
  void OnTaskDone(int64_t ticket) override { made_.Finish(ticket); }
  void OnWireDone(int64_t slice) override;

 private:
  struct Slot {
    int64_t slice;
    std::byte* memory;
  };
  Slot* Find(int64_t slice);
  absl::Status Send(OperationContext& context, int64_t slice);

  WireDesk::Channel channel_;
  std::unique_ptr<SliceSource> source_;
  PartShape part_;
  ScratchSlots& slots_;
  std::vector<Slot> held_;
  PrefixCounter made_;
  PrefixCounter sent_;
  bool heard_ = false;
};

}  // namespace weft
