// All-to-all and send-receive. Every rank copies the parts of its local peers out of their tensors, and
// exchanges slices with remote ranks.
#include <algorithm>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/base/part_shape.h"
#include "src/comm/collectives/last_arrival.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/collectives/part_table.h"
#include "src/comm/phases/sends.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int kExchangeChannel = 0;
// More parts take longer than if each rank moves its own.
constexpr int64_t kMostWholeParts = 256;

// Receive of a part from another node, directly into the tensor or through a ring of slices in scratch.
struct RemoteReceive {
  ReceiveStream receive;
  std::optional<RangeStream> unpack;  // Set if slices go through the ring.

  bool finished() const { return unpack ? unpack->finished() : receive.finished(); }
};

// A copy of one part between two ranks of the node.
struct PartCopy {
  RangeCopy range;
  const std::byte* source;
  std::byte* target;
};

class AllToAllOperation final : public Collective {
 public:
  AllToAllOperation(const GroupPlacement& placement, CollectivePlan&& plan)
      : Collective(std::move(plan), {.input = false, .output = false}),
        follows_last_(this->plan().kind == OpKind::kAllToAll && !placement.spans_nodes() &&
                      placement.size() > 1) {}
  bool is_released_when_drained() const override { return last_.outcome() == Moved::kForAll; }

 protected:
  bool wakes_peers_on_arrival() const override { return !follows_last_; }

  absl::Status PrepareMemory(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    if (placement.local_peers().empty()) return absl::OkStatus();
    const auto members = static_cast<size_t>(placement.local_size());
    const size_t rows = follows_last_ ? 2 * members : members;
    WEFT_ASSIGN_OR_RETURN(table_, context.scratch.Acquire(rows * sizeof(PartRow)));
    auto* table = new (table_.data()) PartRow[rows];
    if (follows_last_) DescribeForLast(context, table);
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
    if (!follows_last_) return MoveOwn(context);
    return arrived_last() ? BeginAsLast(context) : absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (!is_decided_) {
      WEFT_ASSIGN_OR_RETURN(is_decided_, Decide(context));
      if (!is_decided_) return false;
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
    return is_decided_ &&
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
    if (!is_decided_) last_.AddAwaited(context, ranks);
  }

 private:
  // Describes the parts that this rank receives, and the one that it sends itself, for the rank that arrives
  // last.
  void DescribeForLast(const OperationContext& context, PartRow* table) {
    const GroupPlacement& placement = context.placement;
    const auto describe = [&](PartRow& row, const TensorView& part) {
      if (IsEmptyPart(part)) return;
      const std::optional<NodeAddress> address = AddressOf(context.node, part);
      is_reachable_ = is_reachable_ && address.has_value();
      row = RowOf(part, address.value_or(Descriptor::kNoAddress));
    };
    for (int member = 0; member < placement.size(); ++member) {
      describe(table[placement.local_size() + placement.IndexInNode(member)],
               plan().receives[static_cast<size_t>(member)]);
    }
    describe(table[placement.IndexInNode(placement.me())], plan().sends[static_cast<size_t>(placement.me())]);
  }

  // Rows of the tables that the ranks of a group on one node have published. REQUIRES: BeginAsLast has found
  // the tables.
  const PartRow& SendRow(int sender, int receiver) const {
    return tables_[static_cast<size_t>(sender)][receiver];
  }
  const PartRow& ReceiveRow(int receiver, int sender) const {
    return SendRow(receiver, static_cast<int>(tables_.size()) + sender);  // They follow those of sends.
  }

  // Moves what this rank receives, and sends to other nodes.
  absl::Status MoveOwn(OperationContext& context) {
    is_decided_ = true;
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

  // Moves all parts if they are small together. Errors: two ranks disagree about the shape of a part.
  absl::Status BeginAsLast(OperationContext& context) {
    const GroupPlacement& placement = context.placement;
    for (int member = 0; member < placement.size(); ++member)
      tables_.push_back(reinterpret_cast<const PartRow*>(InputOf(context, member)));
    int64_t elements = 0;
    int64_t parts = 0;
    for (int receiver = 0; receiver < placement.size(); ++receiver) {
      for (int sender = 0; sender < placement.size(); ++sender) {
        const PartShape& sent = SendRow(sender, receiver).shape;
        const PartShape& expected = ReceiveRow(receiver, sender).shape;
        if (sent != expected) {
          return PartMismatch(*context.record, placement.BootstrapRank(sender), sent,
                              placement.BootstrapRank(receiver), expected);
        }
        elements += sent.elements();
        parts += sent.elements() > 0 ? 1 : 0;
      }
    }
    const int64_t bytes = elements * static_cast<int64_t>(SizeOf(plan().dtype));
    const int64_t most_bytes = MaxWholeExchangeBytes(context.options, placement.size(), context.shares_core);
    if (bytes > most_bytes || parts > kMostWholeParts) {
      last_.LeaveToAll(context);
      return absl::OkStatus();
    }
    copies_.reserve(static_cast<size_t>(parts));
    Moved outcome = Moved::kForAll;
    for (int receiver = 0; receiver < placement.size(); ++receiver) {
      if (receiver == placement.me() || IsReachable(receiver)) {
        for (int sender = 0; sender < placement.size(); ++sender)
          WEFT_RETURN_IF_ERROR(AddCopy(context, sender, receiver));
      } else {
        outcome = Moved::kForReachable;
      }
    }
    last_.MoveAsLast(context, outcome, {static_cast<size_t>(bytes), static_cast<size_t>(bytes)}, [this] {
      for (const PartCopy& copy : copies_) copy.range.Run(copy.source, copy.target, 0, copy.range.elements());
    });
    return absl::OkStatus();
  }

  // True if this rank can write everything that `member`, another rank, receives.
  bool IsReachable(int member) const {
    const auto has_address = [](const PartRow& row) {
      return row.is_empty() || row.address != Descriptor::kNoAddress;
    };
    if (!has_address(SendRow(member, member))) return false;
    for (int sender = 0; sender < static_cast<int>(tables_.size()); ++sender) {
      if (!has_address(ReceiveRow(member, sender))) return false;
    }
    return true;
  }

  absl::Status AddCopy(const OperationContext& context, int sender, int receiver) {
    const PartRow& sent = SendRow(sender, receiver);
    if (sent.is_empty()) return absl::OkStatus();
    const auto view_of = [&](const PartRow& row) {
      return ViewOf(row, context.node.Map(row.address), plan().dtype);
    };
    // This rank reaches its own tensors wherever they are.
    const int me = context.placement.me();
    const TensorView source =
        sender == me && receiver == me ? plan().sends[static_cast<size_t>(me)] : view_of(sent);
    const TensorView target =
        receiver == me ? plan().receives[static_cast<size_t>(sender)] : view_of(ReceiveRow(receiver, sender));
    WEFT_ASSIGN_OR_RETURN(RangeCopy range, RangeCopy::Make(source, target));
    copies_.push_back(
        {std::move(range), static_cast<const std::byte*>(source.data), static_cast<std::byte*>(target.data)});
    return absl::OkStatus();
  }

  // Returns true once this rank knows what it moves itself.
  absl::StatusOr<bool> Decide(OperationContext& context) {
    if (!last_.Poll(context)) return false;
    const bool is_left_out = last_.outcome() == Moved::kForReachable && !arrived_last() && !is_reachable_;
    if (last_.outcome() == Moved::kForNone || is_left_out) WEFT_RETURN_IF_ERROR(MoveOwn(context));
    return true;
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
    const auto* table = reinterpret_cast<const PartRow*>(InputOf(context, peer));
    const PartRow& row = table[placement.IndexInNode(placement.me())];
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
    slots_.emplace(RoundUpToCacheLine(static_cast<size_t>(slot) * SizeOf(plan().dtype)));
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

  // Set if the rank that arrives last may move all parts. See Note [Last arrival].
  const bool follows_last_;
  bool is_reachable_ = true;  // Peers can write everything that this rank receives.
  bool is_decided_ = false;   // It is known which parts this rank moves itself.
  LastArrival last_;
  // At the rank that arrived last.
  std::vector<const PartRow*> tables_;  // By member.
  std::vector<PartCopy> copies_;

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
