// What an operation sends to ranks of other nodes: slices that lie in memory as they travel, and slices that
// are made when they are asked for.
//
// Thread safety: the core's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/collectives/streams.h"

namespace weft {

// Slices of all of an operation's streams that may be in a sender's scratch.
inline constexpr int kSenderSlots = 16;

// Slices to a peer of another node, as it gives credits.
class OutgoingStream : public WireOwner {
 public:
  virtual ~OutgoingStream() = default;
  // `available`: slices that may be sent.
  virtual absl::StatusOr<bool> Step(OperationContext& context, int64_t available) = 0;
  virtual bool finished() const = 0;
  virtual int peer() const = 0;
};

// Slices of memory to a peer of another node, as it gives credits.
//
// Note [Empty parts]
// A rank that expects nothing of a peer says so, and the peer keeps the operation until it has heard that.
// Else two ranks that disagree on whose part is empty would both have nothing to wait for: neither would ever
// see the other's descriptor. An operation may be *ready* before, as its outputs do not depend on it; it is
// not *released*.
class SendStream final : public OutgoingStream {
 public:
  SendStream(CreditScheduler::Channel channel, Slicing slicing, SliceMemory source)
      : SendStream(channel, slicing, source, PartShape::Run(slicing.elements)) {}
  SendStream(CreditScheduler::Channel channel, Slicing slicing, SliceMemory source, PartShape part)
      : channel_(channel), slicing_(slicing), source_(source), part_(part) {}

  absl::StatusOr<bool> Step(OperationContext& context, int64_t available) override;
  bool finished() const override { return heard_ && progress_.done() == slicing_.slices(); }
  int peer() const override { return channel_.peer; }
  void OnWireDone(int64_t slice) override { progress_.Finish(slice); }

 private:
  CreditScheduler::Channel channel_;
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
class StagedSendStream final : public TaskOwner, public OutgoingStream {
 public:
  StagedSendStream(CreditScheduler::Channel channel, std::unique_ptr<SliceSource> source, PartShape part,
                   ScratchSlots& slots)
      : channel_(channel), source_(std::move(source)), part_(part), slots_(slots) {}

  // `available`: slices that may be made.
  absl::StatusOr<bool> Step(OperationContext& context, int64_t available) override;
  bool finished() const override { return heard_ && sent_.done() == source_->slicing().slices(); }
  int peer() const override { return channel_.peer; }
  void OnTaskDone(int64_t ticket) override { made_.Finish(ticket); }
  void OnWireDone(int64_t slice) override;

 private:
  struct Slot {
    int64_t slice;
    std::byte* memory;
  };
  Slot* Find(int64_t slice);
  absl::Status Send(OperationContext& context, int64_t slice);

  CreditScheduler::Channel channel_;
  std::unique_ptr<SliceSource> source_;
  PartShape part_;
  ScratchSlots& slots_;
  std::vector<Slot> held_;
  PrefixCounter made_;
  PrefixCounter sent_;
  bool heard_ = false;
};

// Elements that lie in memory, and how they are to travel.
struct OutgoingRun {
  Slicing slicing;
  DType dtype;
  SliceMemory memory;
  WireEncoding form;
  std::optional<SliceMemory> before = std::nullopt;  // Their older state, for changes.
};

// All that one operation sends.
class Sends {
 public:
  void Add(std::unique_ptr<OutgoingStream> stream) { streams_.push_back(std::move(stream)); }
  // `slots`: for slices that do not travel as they lie.
  void AddRun(const CreditScheduler::Channel& channel, const OutgoingRun& run, ScratchSlots& slots);

  // `available`: slices of each that may be sent.
  absl::StatusOr<bool> Step(OperationContext& context,
                            int64_t available = std::numeric_limits<int64_t>::max());
  bool finished() const;
  void AddAwaited(std::set<int>& ranks) const;

 private:
  std::vector<std::unique_ptr<OutgoingStream>> streams_;
};

}  // namespace weft
