// All-to-all and send-receive. Every rank copies the parts of its local peers out of their tensors, and
// exchanges slices with remote ranks. The rank that arrives last may move an all-to-all on one node.
#include <algorithm>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/base/part_shape.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/collectives/part_table.h"
#include "src/comm/collectives/whole_exchange.h"
#include "src/comm/phases/sends.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kExchangeChannel = 0;

// Receive of a part from another node, directly into the tensor or through a ring of slices in scratch.
struct RemoteReceive {
  ReceiveStream receive;
  std::optional<RangeStream> unpack;  // Set if slices go through the ring.

  bool finished() const { return unpack ? unpack->finished() : receive.finished(); }
};

class AllToAllOperation final : public Collective {
 public:
  AllToAllOperation(const GroupPlacement& placement, CollectivePlan&& plan)
      : Collective(std::move(plan), {.input = false, .output = false}) {
    const bool is_on_node = !placement.spans_nodes() && placement.size() > 1;
    if (is_on_node && this->plan().kind == OpKind::kAllToAll) whole_.emplace(this->plan());
  }
  bool is_released_when_drained() const override { return whole_ && whole_->has_moved_all(); }

 protected:
  bool wakes_peers_on_arrival() const override { return !whole_; }

  absl::Status PrepareMemory(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (placement.local_peers().empty()) return absl::OkStatus();
    const size_t rows =
        whole_ ? WholeExchange::TableRows(placement) : static_cast<size_t>(placement.local_size());
    WEFT_ASSIGN_OR_RETURN(table_, context.scratch.Acquire(rows * sizeof(PartRow)));
    auto* table = new (table_.data()) PartRow[rows];
    if (whole_) whole_->Describe(context, table);
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
    if (!whole_) return MoveOwn(context);
    if (!arrived_last()) return absl::OkStatus();
    std::vector<const PartRow*> tables;
    tables.reserve(static_cast<size_t>(context.placement.size()));
    for (int member = 0; member < context.placement.size(); ++member)
      tables.push_back(TableOf(context, member));
    return whole_->BeginAsLast(context, std::move(tables));
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (!is_decided()) {
      if (!whole_->Poll(context)) return false;
      if (whole_->moves_own()) WEFT_RETURN_IF_ERROR(MoveOwn(context));
    }
    bool advanced = false;
    for (RangeStream& pull : pulls_) advanced |= pull.Step(context, kAllSlices);
    const auto credit = [&](RemoteReceive& remote) -> absl::StatusOr<bool> {
      WEFT_RETURN_IF_ERROR(remote.receive.AnnounceEmpty(context));
      return remote.receive.Credit(context, remote.unpack ? remote.unpack->done() : 0, kAllSlices);
    };
    WEFT_ASSIGN_OR_RETURN(const bool credited, CreditInTurn(pace_, remote_receives_, credit));
    advanced |= credited;
    for (RemoteReceive& remote : remote_receives_) {
      if (remote.unpack) advanced |= remote.unpack->Step(context, remote.receive.done());
    }
    WEFT_ASSIGN_OR_RETURN(const bool sent, sends_.Step(context));
    return advanced || sent;
  }

  bool MoveComplete() const override {
    return is_decided() &&
           std::all_of(pulls_.begin(), pulls_.end(), [](const RangeStream& s) { return s.finished(); }) &&
           std::all_of(remote_receives_.begin(), remote_receives_.end(),
                       [](const RemoteReceive& remote) { return remote.finished(); });
  }
  bool MoveDrained() const override { return MoveComplete() && sends_.finished(); }
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    for (const RemoteReceive& remote : remote_receives_) {
      if (!remote.receive.finished()) ranks.insert(remote.receive.peer());
    }
    sends_.AddAwaited(ranks);
    if (whole_) whole_->AddAwaited(context, ranks);
  }

 private:
  // True if it is known which parts this rank moves itself.
  bool is_decided() const { return !whole_ || whole_->is_decided(); }
  // The part table that a rank of this node has published. REQUIRES: BeginMove has been called.
  const PartRow* TableOf(const OperationContext& context, int member) const {
    return reinterpret_cast<const PartRow*>(InputOf(context, member));
  }

  // Moves what this rank receives, and sends to other nodes.
  absl::Status MoveOwn(OperationContext& context) {
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
    for (RemoteReceive& remote : remote_receives_) remote.receive.KeepPace(pace_);
    return absl::OkStatus();
  }

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
    const PartRow& row = TableOf(context, peer)[placement.IndexInNode(placement.me())];
    const TensorView& target = plan().receives[static_cast<size_t>(peer)];
    const int rank = placement.BootstrapRank(peer);
    if (row.shape != PartShape::Of(target)) {
      return PartMismatch(*context.record, rank, row.shape, placement.BootstrapRank(placement.me()),
                          PartShape::Of(target));
    }
    if (IsEmptyPart(target)) return absl::OkStatus();
    return AddPull(context, ViewOf(row, context.node.Map(row.address), plan().dtype), target);
  }

  // Acquires scratch for the parts that are not contiguous.
  absl::Status TakeScratch(OperationContext& context) {
    int64_t largest_send = 0;  // Elements.
    int64_t rings = 0;
    for (int member = 0; member < context.placement.size(); ++member) {
      if (context.placement.IsLocal(member)) continue;
      const TensorView& part = plan().sends[static_cast<size_t>(member)];
      if (!IsContiguousPart(part)) largest_send = std::max(largest_send, part.elements());
      if (!IsContiguousPart(plan().receives[static_cast<size_t>(member)])) ++rings;
    }
    if (rings > 0) ring_slices_ = RingSlices(context, rings, RingUse::kUneven);
    size_t ring_bytes = 0;
    for (int member = 0; member < context.placement.size(); ++member) {
      if (context.placement.IsLocal(member)) continue;
      ring_bytes += RingBytes(context, plan().receives[static_cast<size_t>(member)]);
    }
    if (ring_bytes > 0) {
      WEFT_ASSIGN_OR_RETURN(ring_, context.scratch.Acquire(ring_bytes));
    }
    const int64_t slot = std::min(largest_send, SliceElements(context, plan().dtype));
    slots_.emplace(RoundUpToCacheLine(static_cast<size_t>(BytesOf(slot, plan().dtype))));
    return absl::OkStatus();
  }

  // True for a part whose slices are sent from, or received into, the tensor itself.
  static bool IsContiguousPart(const TensorView& part) { return IsEmptyPart(part) || part.IsContiguous(); }
  size_t RingBytes(const OperationContext& context, const TensorView& part) const {
    if (IsContiguousPart(part)) return 0;
    const int64_t ring_elements = ring_slices_ * SliceElements(context, plan().dtype);
    return RoundUpToCacheLine(static_cast<size_t>(std::min(part.elements(), ring_elements)) *
                              SizeOf(plan().dtype));
  }
  CreditScheduler::Channel ChannelTo(const OperationContext& context, int member) const {
    return {context.record->lane, context.record->descriptor.sequence,
            context.placement.BootstrapRank(member), kExchangeChannel};
  }

  // Takes its share of the remaining scratch from `ring`.
  void AddRemoteReceive(OperationContext& context, int member, std::byte*& ring) {
    const TensorView& part = plan().receives[static_cast<size_t>(member)];
    const PartShape shape = PartShape::Of(part);
    const Slicing slicing{shape.elements(), SliceElements(context, plan().dtype)};
    const size_t ring_bytes = RingBytes(context, part);
    const bool direct = ring_bytes == 0;
    const SliceMemory slices{direct ? static_cast<std::byte*>(part.data) : ring, SizeOf(plan().dtype),
                             direct ? 0 : std::min(ring_slices_, slicing.slices())};
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

  // Set if the rank that arrives last may move all parts.
  std::optional<WholeExchange> whole_;
  Buffer table_;             // See Note [Part tables].
  Buffer staged_;            // Copies of the parts for local peers that lie outside node memory.
  Buffer ring_;              // Rings of received slices of parts that are not contiguous.
  int64_t ring_slices_ = 1;  // Slices of each remote part that fit its ring.
  std::optional<ScratchSlots> slots_;
  // Lists: tasks hold pointers to the streams, and many operations have none.
  std::list<RangeStream> pulls_;  // Copies of local parts.
  std::list<RemoteReceive> remote_receives_;
  CreditPace pace_;  // Of these.
  Sends sends_;
};

}  // namespace

std::unique_ptr<Operation> MakeAllToAll(const GroupPlacement& placement, CollectivePlan&& plan) {
  return std::make_unique<AllToAllOperation>(placement, std::move(plan));
}

}  // namespace weft
