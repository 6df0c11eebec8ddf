// All-to-all and send-receive. Every rank copies the parts of its local peers out of their tensors, and
// exchanges slices with remote ranks.
//
// Note [Part tables]
// Problem: only the sender of a part knows its address and strides, but local peers copy parts directly.
// Rule: a rank publishes, as its input, a part table in node memory. The table has a row for each rank of the
// node, with the shape, the strides and the address of the part for that rank.
// Why it suffices: publishing the descriptor makes the rows visible, and the table lives as long as the
// operation.
#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/base/part_shape.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/phases/sends.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kExchangeChannel = 0;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
// Slices of one part that fit the receiver's scratch.
constexpr int64_t kRingSlices = 4;

// Row of a part table. Trivially copyable, in node memory.
struct PartRow {
  PartShape shape;
  std::array<int64_t, PartShape::kMaxDims> strides{};  // Elements.
  NodeAddress address{};                               // Not set for an empty part.
};

PartRow RowOf(const TensorView& part, NodeAddress address) {
  PartRow row;
  row.shape = PartShape::Of(part);
  row.address = address;
  std::copy(part.strides.begin(), part.strides.end(), row.strides.begin());
  return row;
}

TensorView ViewOf(const PartRow& row, std::byte* data, DType dtype) {
  return {data, dtype, row.shape.ToShape(), {row.strides.begin(), row.strides.begin() + row.shape.dims}};
}

// Address of a part in node memory. Nothing unless all of the part lies in one segment of node memory.
std::optional<NodeAddress> AddressOf(const NodeLink& node, const TensorView& part) {
  int64_t lowest = 0;
  int64_t highest = 0;
  for (size_t dim = 0; dim < part.shape.size(); ++dim) {
    const int64_t reach = (part.shape[dim] - 1) * part.strides[dim];
    (reach < 0 ? lowest : highest) += reach;
  }
  const auto* first = static_cast<const std::byte*>(part.data);
  const auto element_bytes = static_cast<int64_t>(SizeOf(part.dtype));
  const auto begin = node.AddressOf(first + lowest * element_bytes);
  const auto last = node.AddressOf(first + (highest + 1) * element_bytes - 1);
  const bool inside = begin && last && begin->rank == last->rank;
  return inside ? node.AddressOf(first) : std::nullopt;
}

// Receive of a part from another node, directly into the tensor or through a ring of slices in scratch.
struct RemoteReceive {
  ReceiveStream receive;
  std::optional<RangeStream> unpack;  // Set if slices go through the ring.

  bool finished() const { return unpack ? unpack->finished() : receive.finished(); }
};

class AllToAllOperation final : public Collective {
 public:
  explicit AllToAllOperation(CollectivePlan plan)
      : Collective(std::move(plan), {.input = false, .output = false}) {}

 protected:
  absl::Status PrepareMemory(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (placement.local_peers().empty()) return absl::OkStatus();
    const size_t rows = placement.local_peers().size() + 1;
    WEFT_ASSIGN_OR_RETURN(table_, context.scratch.Acquire(rows * sizeof(PartRow)));
    auto* table = new (table_.data()) PartRow[rows];
    size_t staged_bytes = 0;
    std::vector<int> unreadable;
    for (const int peer : placement.local_peers()) {
      const TensorView& part = plan().sends[static_cast<size_t>(peer)];
      if (IsEmptyPart(part)) continue;
      if (const std::optional<NodeAddress> address = AddressOf(context.node, part)) {
        table[placement.IndexInNode(peer)] = RowOf(part, *address);
        continue;
      }
      unreadable.push_back(peer);
      staged_bytes += RoundUpToCacheLine(part.bytes());
    }
    SetSharedInput(table_.data());
    if (unreadable.empty()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(staged_, context.scratch.Acquire(staged_bytes));
    std::byte* next = staged_.data();
    for (const int peer : unreadable) {
      const TensorView& part = plan().sends[static_cast<size_t>(peer)];
      const TensorView packed = TensorView::Contiguous(next, part.dtype, part.shape);
      table[placement.IndexInNode(peer)] = RowOf(packed, *context.node.AddressOf(next));
      WEFT_ASSIGN_OR_RETURN(RangeCopy copy, RangeCopy::Make(part, packed));
      AddStaging(context, std::move(copy), static_cast<const std::byte*>(part.data), next);
      next += RoundUpToCacheLine(part.bytes());
    }
    return absl::OkStatus();
  }

  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    const auto me = static_cast<size_t>(placement.me());
    WEFT_RETURN_IF_ERROR(AddPull(context, plan().sends[me], plan().receives[me]));
    for (const int peer : placement.local_peers()) WEFT_RETURN_IF_ERROR(AddPeer(context, peer));
    WEFT_RETURN_IF_ERROR(TakeScratch(context));
    std::byte* ring = ring_.data();
    for (int step = 1; step < placement.size(); ++step) {
      const int member = (placement.me() + step) % placement.size();
      if (placement.IsLocal(member)) continue;
      AddRemoteReceive(context, member, ring);
      AddSend(context, member);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    bool advanced = false;
    for (RangeStream& pull : pulls_) advanced |= pull.Step(context, kAll);
    for (RemoteReceive& remote : remote_receives_) {
      const int64_t consumed = remote.unpack ? remote.unpack->done() : 0;
      WEFT_ASSIGN_OR_RETURN(const bool credited, remote.receive.Step(context, consumed));
      advanced |= credited;
      if (remote.unpack) advanced |= remote.unpack->Step(context, remote.receive.done());
    }
    WEFT_ASSIGN_OR_RETURN(const bool sent, sends_.Step(context));
    return advanced || sent;
  }

  bool MoveComplete() const override {
    return std::all_of(pulls_.begin(), pulls_.end(), [](const RangeStream& s) { return s.finished(); }) &&
           std::all_of(remote_receives_.begin(), remote_receives_.end(),
                       [](const RemoteReceive& remote) { return remote.finished(); });
  }
  bool MoveDrained() const override { return MoveComplete() && sends_.finished(); }
  void AddAwaited(const OperationContext& /*context*/, std::set<int>& ranks) const override {
    for (const RemoteReceive& remote : remote_receives_) {
      if (!remote.finished()) ranks.insert(remote.receive.peer());
    }
    sends_.AddAwaited(ranks);
  }

 private:
  absl::Status AddPull(const OperationContext& context, const TensorView& source, const TensorView& target) {
    if (IsEmptyPart(target)) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(RangeCopy copy, RangeCopy::Make(source, target));
    pulls_.emplace_back(std::move(copy), SliceElements(context, plan().dtype),
                        SliceMemory::Strided(static_cast<std::byte*>(source.data)),
                        static_cast<std::byte*>(target.data));
    return absl::OkStatus();
  }

  // Adds the copy of a local peer's part, which this rank's row of the peer's table describes.
  absl::Status AddPeer(const OperationContext& context, int peer) {
    const GroupPlacement& placement = context.placement;
    const auto* table = reinterpret_cast<const PartRow*>(InputOf(context, peer));
    const PartRow& row = table[placement.IndexInNode(placement.me())];
    const TensorView& target = plan().receives[static_cast<size_t>(peer)];
    const int rank = placement.WorldRank(peer);
    if (row.shape != PartShape::Of(target)) {
      return PartMismatch(*context.record, rank, row.shape, placement.WorldRank(placement.me()),
                          PartShape::Of(target));
    }
    if (IsEmptyPart(target)) return absl::OkStatus();
    return AddPull(context, ViewOf(row, context.node.Map(row.address), plan().dtype), target);
  }

  // Acquires scratch for the parts that are not contiguous.
  absl::Status TakeScratch(OperationContext& context) {
    int64_t ring_bytes = 0;
    int64_t largest_send = 0;  // Elements.
    for (int member = 0; member < context.placement.size(); ++member) {
      if (context.placement.IsLocal(member)) continue;
      const TensorView& part = plan().sends[static_cast<size_t>(member)];
      if (!IsContiguousPart(part)) largest_send = std::max(largest_send, part.elements());
      ring_bytes += static_cast<int64_t>(RingBytes(context, plan().receives[static_cast<size_t>(member)]));
    }
    if (ring_bytes > 0) {
      WEFT_ASSIGN_OR_RETURN(ring_, context.scratch.Acquire(static_cast<size_t>(ring_bytes)));
    }
    const int64_t slot = std::min(largest_send, SliceElements(context, plan().dtype));
    slots_.emplace(kSenderSlots, RoundUpToCacheLine(static_cast<size_t>(slot) * SizeOf(plan().dtype)));
    return absl::OkStatus();
  }

  // True for a part whose slices are sent from, or received into, the tensor itself.
  static bool IsContiguousPart(const TensorView& part) { return IsEmptyPart(part) || part.IsContiguous(); }
  size_t RingBytes(const OperationContext& context, const TensorView& part) const {
    if (IsContiguousPart(part)) return 0;
    const int64_t ring_elements = kRingSlices * SliceElements(context, plan().dtype);
    return RoundUpToCacheLine(static_cast<size_t>(std::min(part.elements(), ring_elements)) *
                              SizeOf(plan().dtype));
  }
  CreditScheduler::Channel ChannelTo(const OperationContext& context, int member) const {
    return {context.record->lane, context.record->descriptor.sequence, context.placement.WorldRank(member),
            kExchangeChannel};
  }

  // Takes its share of the remaining scratch from `ring`.
  void AddRemoteReceive(OperationContext& context, int member, std::byte*& ring) {
    const TensorView& part = plan().receives[static_cast<size_t>(member)];
    const PartShape shape = PartShape::Of(part);
    const Slicing slicing{shape.elements(), SliceElements(context, plan().dtype)};
    const size_t ring_bytes = RingBytes(context, part);
    const bool direct = ring_bytes == 0;
    const SliceMemory slices{direct ? static_cast<std::byte*>(part.data) : ring, SizeOf(plan().dtype),
                             direct ? 0 : std::min(kRingSlices, slicing.slices())};
    RemoteReceive& remote = remote_receives_.emplace_back(RemoteReceive{
        ReceiveStream(ChannelTo(context, member), WirePhase::kGather, slicing, slices, shape), std::nullopt});
    if (direct) return;
    ring += ring_bytes;
    context.counters.copied_bytes += static_cast<int64_t>(part.bytes());
    remote.unpack.emplace(RangeCopy::Unpack(part), slicing.slice_elements, slices,
                          static_cast<std::byte*>(part.data));
  }

  void AddSend(OperationContext& context, int member) {
    const TensorView& part = plan().sends[static_cast<size_t>(member)];
    const PartShape shape = PartShape::Of(part);
    const Slicing slicing{shape.elements(), SliceElements(context, plan().dtype)};
    auto* memory = static_cast<std::byte*>(part.data);
    if (IsContiguousPart(part)) {
      sends_.Add(std::make_unique<SendStream>(ChannelTo(context, member), slicing,
                                              SliceMemory{memory, SizeOf(plan().dtype)}, shape));
      return;
    }
    context.counters.copied_bytes += static_cast<int64_t>(part.bytes());
    auto packed = std::make_unique<RangeStream>(RangeCopy::Pack(part), slicing.slice_elements,
                                                SliceMemory::Strided(memory), nullptr);
    sends_.Add(
        std::make_unique<StagedSendStream>(ChannelTo(context, member), std::move(packed), shape, *slots_));
  }

  Buffer table_;   // See Note [Part tables].
  Buffer staged_;  // Copies of the parts for local peers that lie outside node memory.
  Buffer ring_;    // Rings of received slices of parts that are not contiguous.
  std::optional<ScratchSlots> slots_;
  std::deque<RangeStream> pulls_;  // Copies of local parts.
  std::deque<RemoteReceive> remote_receives_;
  Sends sends_;
};

}  // namespace

std::unique_ptr<Operation> MakeAllToAll(CollectivePlan plan) {
  return std::make_unique<AllToAllOperation>(std::move(plan));
}

}  // namespace weft
