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
#include <optional>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/collectives/operation.h"

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

// Memory that is addressed by slice: the run itself, or a ring of a few slices, which need not be plain.
struct SliceMemory {
  // A strided tensor, in which a RangeCopy finds its way from the first element.
  static SliceMemory Strided(std::byte* base) { return {base, 0}; }

  std::byte* base = nullptr;
  size_t element_bytes = 1;
  int64_t ring_slices = 0;  // 0: the whole run.
  WireEncoding form = WireEncoding::kPlain;

  std::byte* At(const Slicing& slicing, int64_t slice) const {
    const int64_t place = ring_slices == 0 ? slice : slice % ring_slices;
    if (form != WireEncoding::kPlain) return base + static_cast<size_t>(place) * SlotBytes(slicing);
    return base + static_cast<size_t>(slicing.Begin(place)) * element_bytes;
  }
  // Most that a slice takes.
  size_t Room(const Slicing& slicing, int64_t slice) const {
    return SliceCapacity(form, element_bytes, slicing.Length(slice));
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

// Copies within the node. What it leaves is plain; what it copies from need not be. Changes are made to what
// the target holds.
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
  virtual WireEncoding form() const = 0;
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
  WireEncoding form() const override { return WireEncoding::kPlain; }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  RangeCopy copy_;
  Slicing slicing_;
  SliceMemory source_;
  std::byte* target_;
  PrefixCounter progress_;
};

// Compresses slices of memory: as they are, or, given their older state, as changes.
class CompressStream final : public SliceSource {
 public:
  CompressStream(Slicing slicing, DType dtype, SliceMemory source,
                 std::optional<SliceMemory> before = std::nullopt)
      : slicing_(slicing), dtype_(dtype), source_(source), before_(before) {}

  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  const Slicing& slicing() const override { return slicing_; }
  DType made_dtype() const override { return dtype_; }
  WireEncoding form() const override { return before_ ? WireEncoding::kDelta : WireEncoding::kCompressed; }

 private:
  Slicing slicing_;
  DType dtype_;
  SliceMemory source_;
  std::optional<SliceMemory> before_;
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
  WireEncoding form() const override { return target_.form; }
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
  ReceiveStream(CreditScheduler::Channel channel, WirePhase phase, Slicing slicing, SliceMemory target)
      : ReceiveStream(channel, phase, slicing, target, PartShape::Run(slicing.elements)) {}
  ReceiveStream(CreditScheduler::Channel channel, WirePhase phase, Slicing slicing, SliceMemory target,
                PartShape part)
      : channel_(channel), phase_(phase), slicing_(slicing), target_(target), part_(part) {}

  // `consumed`: slices whose place in a ring may be overwritten.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t consumed);
  // An empty stream says once that it expects nothing. See Note [Empty parts].
  absl::Status AnnounceEmpty(OperationContext& context);
  // Gives a credit for the next slice if it is at most `limit`. False if the window or the ring is full.
  absl::StatusOr<bool> Credit(OperationContext& context, int64_t consumed, int64_t limit);
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  int peer() const { return channel_.peer; }
  void OnWireDone(int64_t slice) override { progress_.Finish(slice); }

 private:
  CreditScheduler::Channel channel_;
  WirePhase phase_;
  Slicing slicing_;
  SliceMemory target_;
  PartShape part_;
  PrefixCounter progress_;
  bool spoken_ = false;
};

}  // namespace weft
