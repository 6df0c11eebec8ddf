// Streams: the building blocks of collectives. A stream moves the elements of one part slice by slice, and
// counts the slices that are done from its start. The next stream of a pipeline starts a slice when the
// previous one has done it.
//
// Thread safety: all members are called under the core's lock.
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

#include "src/comm/base/cache_line.h"
#include "src/comm/base/slice_place.h"
#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/operation.h"
#include "src/comm/phases/prefix_counter.h"

namespace weft {

// How the elements of a part are divided into slices, which are numbered from 0.
struct Slicing {
  int64_t elements = 0;
  int64_t slice_elements = 1;

  int64_t slices() const { return (elements + slice_elements - 1) / slice_elements; }
  int64_t Begin(int64_t slice) const { return slice * slice_elements; }
  int64_t SliceBytes(DType dtype) const { return BytesOf(slice_elements, dtype); }
  // Elements of `slices` slices, from `slice` on.
  int64_t Length(int64_t slice, int64_t slices = 1) const {
    return std::min(slices * slice_elements, elements - Begin(slice));
  }
};

// A number of slices that limits nothing.
inline constexpr int64_t kAllSlices = std::numeric_limits<int64_t>::max();

// Largest number of tasks of one stream that are queued or running, if all move equally many slices. A stream
// issues no task while the slices of two like it are outstanding.
inline constexpr int64_t kPiecesInFlight = 2;

// A staging ring between two ranks of a node: its pieces, and the largest ones of collectives. The rings of
// this rank and of its peers should fit the second-level cache together. See Note [Staging rings].
inline constexpr int64_t kRingPieces = 4;
inline constexpr int64_t kMaxRingPieceBytes = int64_t{128} * 1024;

// Use of rings: by the streams of a reduction, which advance together, in slices or, on a fast link, in runs;
// by others that may have more than their share of the window (Note [Paced credits]); or by others.
enum class RingUse : uint8_t { kReduction, kReductionInRuns, kUneven, kEven };
// Number of slices of each receive ring, if `streams` streams of at most `slices` slices share an operation's
// scratch. Called only if
// there are rings, because it may ask the heap for its free memory, which takes a lock. The rings of few
// streams are long enough to keep the wire busy while threads wait for a core, above all that of the only
// stream of a reduction: several would drift apart. Together they hold the wire's budget (see Note [Wire
// budget]), uneven ones up to twice that, and at least four slices each, but take at most a quarter of the
// memory that is free, or 16 slices. If that is not enough, each has one slice.
int64_t RingSlices(const OperationContext& context, int64_t streams, RingUse use = RingUse::kEven,
                   int64_t slices = kAllSlices);

// Memory that is addressed by slice: a whole part, or a ring of a few slices. The slices of a ring may be
// encoded.
struct SliceMemory {
  // A strided tensor. Every slice has the address of the first element, from which a RangeCopy finds the
  // slice.
  static SliceMemory Strided(std::byte* base) { return {base, 0}; }

  std::byte* base = nullptr;
  size_t element_bytes = 1;
  int64_t ring_slices = 0;  // 0: the memory holds the whole part.
  WireEncoding encoding = WireEncoding::kPlain;
  // The ranges that hold the part in the buffer at `base`. Empty: it lies end to end at `base`.
  absl::Span<const PartRanges::PlacedRange> ranges = {};
  // The buffer's views, instead of the block at `base`. Null: none. REQUIRES: `ranges` are given.
  const ViewTable* views = nullptr;
  // Section of a ring that several parts share: slice s of this part has slot
  // (first + s * stride) % ring_slices.
  struct Window {
    int64_t first;
    int64_t stride;
    size_t slot_bytes;
  };
  std::optional<Window> window = std::nullopt;

  // Place of `slices` slices, from `slice` on. REQUIRES: they lie end to end, or in ranges.
  SlicePlace PlaceOf(const Slicing& slicing, int64_t slice, int64_t slices = 1) const {
    if (ranges.empty()) return At(slicing, slice);
    return {base, element_bytes, ranges, slicing.Begin(slice), slicing.Length(slice, slices), views};
  }
  // Slices from `slice` on, at most `slices`, that lie end to end, or in ranges. At least one.
  // A view of zeros has the memory of one slice.
  int64_t LongestRun(int64_t slice, int64_t slices) const {
    if (encoding != WireEncoding::kPlain || window || views != nullptr) return 1;
    return ring_slices == 0 ? slices : std::min(slices, ring_slices - slice % ring_slices);
  }
  // REQUIRES: the part lies end to end.
  std::byte* At(const Slicing& slicing, int64_t slice) const {
    if (window) {
      const int64_t slot = (window->first + slice * window->stride) % ring_slices;
      return base + static_cast<size_t>(slot) * window->slot_bytes;
    }
    const int64_t slot = ring_slices == 0 ? slice : slice % ring_slices;
    if (encoding != WireEncoding::kPlain) return base + static_cast<size_t>(slot) * SlotBytes(slicing);
    return base + static_cast<size_t>(slicing.Begin(slot)) * element_bytes;
  }
  // Largest size in bytes of an encoded slice.
  size_t MaxSliceBytes(const Slicing& slicing, int64_t slice) const {
    return SliceCapacity(encoding, element_bytes, slicing.Length(slice));
  }
  // Size in bytes of a slot that can hold any slice. Slots start at cache lines.
  size_t SlotBytes(const Slicing& slicing) const {
    return slicing.elements == 0 ? 0 : RoundUpToCacheLine(MaxSliceBytes(slicing, 0));
  }
  // Size in bytes of the whole ring.
  size_t RingBytes(const Slicing& slicing) const {
    return static_cast<size_t>(std::min(ring_slices, slicing.slices())) * SlotBytes(slicing);
  }
};

// True if both have the same elements at the same addresses.
inline bool IsSameMemory(const SliceMemory& a, const SliceMemory& b) {
  return a.base == b.base && a.ranges.data() == b.ranges.data();
}

// The part of a whole buffer that belongs to a member. The buffer may be one that is only read.
SliceMemory PartMemory(const PartLayout& parts, const WholeMemory& buffer, int member, size_t element_bytes);

// Copies a part within the node. Decodes encoded source slices; the target is plain. A delta-encoded slice is
// applied to the base in the target.
class CopyStream final : public TaskOwner {
 public:
  CopyStream(Slicing slicing, DType dtype, SliceMemory source, SliceMemory target, bool nontemporal)
      : slicing_(slicing), dtype_(dtype), source_(source), target_(target), nontemporal_(nontemporal) {}
  // The copy from the ring of a ReceiveStream to its target. See Note [Slices in ranges].
  static CopyStream FromRing(Slicing slicing, DType dtype, SliceMemory ring, SliceMemory target) {
    CopyStream copy(slicing, dtype, ring, target, /*nontemporal=*/false);
    copy.is_from_ring_ = true;
    return copy;
  }
  // Declares that the source is memory of another share domain of the node.
  void SetCrossesDomains() { crosses_domains_ = true; }

  // Issues tasks. Returns true if it issued any. `available`: slices of the source that may be read.
  bool Step(OperationContext& context, int64_t available);
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  // Slices of the next task, at most `available` in all.
  int64_t NextSlices(const OperationContext& context, int64_t available) const;
  // Issues the next slices.
  void Issue(OperationContext& context, int64_t slices);
  TaskBody BodyOf(int64_t slice, int64_t slices) const;

  Slicing slicing_;
  DType dtype_;
  SliceMemory source_;
  SliceMemory target_;
  bool nontemporal_;
  bool is_from_ring_ = false;
  bool crosses_domains_ = false;
  PrefixCounter progress_;
};

// Interface of a stream that produces slices on demand.
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  virtual const Slicing& slicing() const = 0;
  // Dtype of the elements that it produces.
  virtual DType element_dtype() const = 0;
  virtual WireEncoding encoding() const = 0;
  // Address from which the slice can be sent without a task. Null: Issue must produce it.
  virtual const std::byte* Produced(int64_t /*slice*/) const { return nullptr; }
  // Issues the task that writes one slice to `target`. `owner` gets the completion callback.
  virtual void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) = 0;
};

// Copies between strided tensors of the node, or packs and unpacks the slices of a strided tensor.
class RangeStream final : public TaskOwner, public SliceSource {
 public:
  RangeStream(RangeCopy copy, int64_t slice_elements, SliceMemory source, std::byte* target)
      : copy_(std::move(copy)),
        slicing_{copy_.elements(), slice_elements},
        source_(source),
        target_(target) {}

  // Issues tasks. Returns true if it issued any. `available`: slices of the source that may be read.
  bool Step(OperationContext& context, int64_t available);
  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  const Slicing& slicing() const override { return slicing_; }
  DType element_dtype() const override { return copy_.dtype(); }
  WireEncoding encoding() const override { return WireEncoding::kPlain; }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  // Slices of the next task, at most `available` in all.
  int64_t NextSlices(const OperationContext& context, int64_t available) const;
  TaskBody BodyOf(int64_t slice, int64_t slices, std::byte* target) const;

  RangeCopy copy_;
  Slicing slicing_;
  SliceMemory source_;
  std::byte* target_;
  PrefixCounter progress_;
};

// Packs the slices of a part in ranges that one range does not hold whole. See Note [Slices in ranges].
class PackStream final : public SliceSource {
 public:
  PackStream(Slicing slicing, DType dtype, SliceMemory source)
      : slicing_(slicing), dtype_(dtype), source_(source) {}

  const std::byte* Produced(int64_t slice) const override {
    const SlicePlace place = source_.PlaceOf(slicing_, slice);
    return place.is_contiguous() ? place.data : nullptr;
  }
  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  const Slicing& slicing() const override { return slicing_; }
  DType element_dtype() const override { return dtype_; }
  WireEncoding encoding() const override { return WireEncoding::kPlain; }

 private:
  Slicing slicing_;
  DType dtype_;
  SliceMemory source_;
};

// Encodes slices of memory: with delta encoding if there is a base, else with lossless compression.
class CompressStream final : public SliceSource {
 public:
  CompressStream(Slicing slicing, DType dtype, SliceMemory source,
                 std::optional<SliceMemory> delta_base = std::nullopt)
      : slicing_(slicing), dtype_(dtype), source_(source), delta_base_(delta_base) {}

  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override;
  const Slicing& slicing() const override { return slicing_; }
  DType element_dtype() const override { return dtype_; }
  WireEncoding encoding() const override {
    return delta_base_ ? WireEncoding::kDelta : WireEncoding::kCompressed;
  }

 private:
  Slicing slicing_;
  DType dtype_;
  SliceMemory source_;
  std::optional<SliceMemory> delta_base_;
};

// Evaluates a reduction program over leaves in memory, slice by slice. All leaves in ranges have the same
// ranges and dtype.
class ReduceStream final : public TaskOwner, public SliceSource {
 public:
  struct Leaf {
    SliceMemory memory;
    DType dtype;
    bool crosses_domains = false;  // It is memory of another share domain of the node.
  };
  ReduceStream(Slicing slicing, ReduceProgram program, std::vector<Leaf> leaves, ReduceOp op,
               ReduceTarget target)
      : slicing_(slicing),
        program_(std::move(program)),
        leaves_(std::move(leaves)),
        op_(op),
        target_(std::move(target)) {}

  // Declares that `count` of the target and its copies are memory of other share domains of the node.
  void SetCrossingOutputs(int count) { crossing_outputs_ = count; }
  // Adds the bytes that the whole reduction moves between share domains to the engine's counter.
  void CountCrossing(const OperationContext& context) const;
  // Moves a leaf that is a ring of one slice, for the tasks that are issued later.
  void MoveLeaf(size_t leaf, std::byte* slice) { leaves_[leaf].memory.base = slice; }

  // Issues tasks. Returns true if it issued any. `available`: slices that may be read of every leaf.
  bool Step(OperationContext& context, int64_t available);
  void Issue(OperationContext& context, int64_t slice, std::byte* target, TaskOwner* owner) override {
    IssueAs(context, slice, slice, target, owner);
  }
  // The same. `owner` gets the callback with `ticket`.
  void IssueAs(OperationContext& context, int64_t ticket, int64_t slice, std::byte* target, TaskOwner* owner);
  // Issues the task that writes `slices` slices to their position in the target and in the target's copies.
  // REQUIRES: they are no more than LongestRun says.
  void IssueToTarget(OperationContext& context, int64_t slice, TaskOwner* owner, int64_t slices = 1);
  // Slices from `slice` on, at most `slices`, that one task may reduce. At least one.
  int64_t LongestRun(int64_t slice, int64_t slices) const;
  // Bytes that the task of a whole slice reads and writes, with the target's copies.
  int64_t MovedBytes() const;
  int64_t done() const { return progress_.done(); }
  bool finished() const { return progress_.done() == slicing_.slices(); }
  const Slicing& slicing() const override { return slicing_; }
  DType element_dtype() const override { return target_.dtype; }
  WireEncoding encoding() const override { return target_.encoding; }
  void OnTaskDone(int64_t ticket) override { progress_.Finish(ticket); }

 private:
  struct Completion {
    TaskOwner* owner;
    int64_t ticket;
  };
  // Bytes that cross for each element.
  int64_t CrossingBytes(int crossing_outputs) const;
  void Push(OperationContext& context, int64_t slice, int64_t slices, ReduceTarget target,
            int crossing_outputs, Completion completion);

  Slicing slicing_;
  ReduceProgram program_;
  std::vector<Leaf> leaves_;
  ReduceOp op_;
  ReduceTarget target_;
  int crossing_outputs_ = 0;
  PrefixCounter progress_;
};

// Receives slices from a remote peer into memory, and gives the credits for them.
//
// Note [Slices in ranges]
// Problem: a message has one address at each end, but a slice of a part in ranges may lie in several of them.
// Rule: a slice that one range holds whole is sent, and received, where it lies. Any other slice is packed
// into a scratch slot before it is sent, and is received into a ring, from which it is copied to its ranges.
// copied_bytes counts both copies. Why it suffices: sender and receiver count the elements of a part alike,
// and neither needs to know how the other stores it. At most one slice for each bound of a range is copied.
class ReceiveStream final : public WireOwner {
 public:
  // State of the sender's slices when it starts the operation. See Note [Silent peers].
  enum class Source : uint8_t {
    kReady,     // All slices can be sent at once.
    kProduced,  // The operation first produces each slice.
  };
  ReceiveStream(CreditScheduler::Channel channel, WirePhase phase, Slicing slicing, SliceMemory target,
                Source source = Source::kReady)
      : ReceiveStream(channel, phase, slicing, target, PartShape::OneDim(slicing.elements), source) {}
  ReceiveStream(CreditScheduler::Channel channel, WirePhase phase, Slicing slicing, SliceMemory target,
                PartShape part, Source source = Source::kReady)
      : channel_(channel), phase_(phase), slicing_(slicing), target_(target), part_(part), source_(source) {}

  // Receives the slices that one range of the target does not hold whole into `ring`.
  void ReceiveInto(SliceMemory ring) { ring_ = ring; }
  // Gives credits for runs of slices. REQUIRES: slices are plain and lie end to end in the target, but for
  // the end of its ring; the peer sends them with a SendStream. See Note [Runs of slices].
  void ReceiveRuns() { receives_runs_ = true; }
  // Gives all credits at a pace. See Note [Paced credits]. Lifetime: `pace` must outlive the last credit.
  void KeepPace(CreditPace& pace);

  // Gives as many credits as possible. Returns true if it gave any.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t consumed);
  // Announces once to the peer that this rank expects an empty part, if it does. See Note [Empty parts].
  absl::Status AnnounceEmpty(OperationContext& context);
  // Counts the slices in flight in all windows once the peer has started the operation. See Note [Silent
  // peers]. Credit does so, too; a phase that gives other streams their credits first calls it in each poll.
  void CheckPeerStarted(const OperationContext& context);
  // Gives a credit for the next slice or run. Returns false if `limit` slices have credits, a window or the
  // ring is full, or the peer is silent. `consumed`: slices whose slots in the ring may be overwritten.
  absl::StatusOr<bool> Credit(OperationContext& context, int64_t consumed, int64_t limit);
  int64_t issued() const { return progress_.issued(); }
  int64_t done() const { return progress_.done(); }
  int64_t in_flight() const { return progress_.outstanding(); }                 // Slices.
  bool is_credited() const { return progress_.issued() == slicing_.slices(); }  // All slices have credits.
  bool finished() const { return progress_.done() == slicing_.slices(); }
  int peer() const { return channel_.peer; }
  void OnWireDone(int64_t slice) override { progress_.Finish(slice); }

 private:
  // Slices that may have credits, and the state of the sender.
  struct Bounds {
    int64_t consumed;
    int64_t limit;
    bool started;
  };
  // Slices of the longest run that may begin with the next slice.
  int64_t LongestRun(const OperationContext& context, const Bounds& bounds) const;
  // True if the pace and the window of a stream allow `bytes` more.
  bool KeepsPace(const OperationContext& context, size_t bytes) const;
  // True if the ring and the windows have room for the next slices.
  bool HasRoom(const OperationContext& context, const Bounds& bounds, int64_t slices) const;
  // Slices that the next credit is for. 0: none may be given now.
  int64_t NextSlices(const OperationContext& context, const Bounds& bounds) const;
  // Bytes that the next slices may have.
  size_t BytesOf(int64_t slices) const {
    return SliceCapacity(target_.encoding, target_.element_bytes, slicing_.Length(issued(), slices));
  }
  int64_t ring_slices() const { return ring_ ? ring_->ring_slices : target_.ring_slices; }
  std::byte* AddressOf(int64_t slice) const;
  bool SenderHasStarted(const OperationContext& context) const {
    return progress_.done() > 0 || (source_ == Source::kReady && context.wire.HasStarted(channel_));
  }

  CreditScheduler::Channel channel_;
  WirePhase phase_;
  Slicing slicing_;
  SliceMemory target_;
  std::optional<SliceMemory> ring_;
  PartShape part_;
  PrefixCounter progress_;
  Source source_;
  bool receives_runs_ = false;
  CreditPace* pace_ = nullptr;  // Null: its credits have no pace.
  bool ran_ahead_ = false;      // Has given credits to a silent peer.
  bool announced_empty_ = false;
};

}  // namespace weft
