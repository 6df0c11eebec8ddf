// All-to-all, and its form with one part: every rank pulls its parts out of the tensors of its node's ranks,
// and exchanges slices with the others.
//
// Note [Part tables]
// Where a part lies, and how, only its sender knows. So what a rank publishes as its input is a table in node
// memory with a row for each rank of the node: shape, strides and place of the part that is for it.
// Publishing makes the rows visible, and they stay as long as the operation.
#include <array>
#include <deque>
#include <utility>

#include "src/comm/base/part_shape.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/collectives/sends.h"

namespace weft {
namespace {

constexpr int kExchangeChannel = 0;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
// Slices of one part that may be in the receiver's scratch.
constexpr int64_t kRingSlices = 4;

// Plain data, in node memory.
struct PartRow {
  PartShape shape;
  std::array<int64_t, PartShape::kMaxDims> strides{};
  NodeAddress place{};  // Of a part that is not empty.
};

PartRow RowOf(const TensorView& part, NodeAddress place) {
  PartRow row;
  row.shape = PartShape::Of(part);
  row.place = place;
  std::copy(part.strides.begin(), part.strides.end(), row.strides.begin());
  return row;
}

TensorView ViewOf(const PartRow& row, std::byte* data, DType dtype) {
  return {data, dtype, row.shape.ToShape(), {row.strides.begin(), row.strides.begin() + row.shape.dims}};
}

// Where a part lies in node memory, if all of it does.
std::optional<NodeAddress> PlaceOf(const NodeLink& node, const TensorView& part) {
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

// What comes from another node: straight to its place, or through a ring of slices.
struct Arrival {
  ReceiveStream receive;
  std::optional<RangeStream> unpack;

  bool finished() const { return unpack ? unpack->finished() : receive.finished(); }
};

class AllToAllOperation final : public Collective {
 public:
  explicit AllToAllOperation(CollectivePlan plan)
      : Collective(std::move(plan), {.input = false, .output = false}) {}

 protected:
  absl::Status TakeMemory(OperationContext& context) override {
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
      if (const std::optional<NodeAddress> place = PlaceOf(context.node, part)) {
        table[placement.IndexInNode(peer)] = RowOf(part, *place);
        continue;
      }
      unreadable.push_back(peer);
      staged_bytes += CacheLines(part.bytes());
    }
    ShareInput(table_.data());
    if (unreadable.empty()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(staged_, context.scratch.Acquire(staged_bytes));
    std::byte* next = staged_.data();
    for (const int peer : unreadable) {
      const TensorView& part = plan().sends[static_cast<size_t>(peer)];
      const TensorView packed = TensorView::Contiguous(next, part.dtype, part.shape);
      table[placement.IndexInNode(peer)] = RowOf(packed, *context.node.AddressOf(next));
      WEFT_ASSIGN_OR_RETURN(RangeCopy copy, RangeCopy::Make(part, packed));
      AddStaging(context, std::move(copy), static_cast<const std::byte*>(part.data), next);
      next += CacheLines(part.bytes());
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
      AddArrival(context, member, ring);
      AddSend(context, member);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    bool advanced = false;
    for (RangeStream& pull : pulls_) advanced |= pull.Step(context, kAll);
    for (Arrival& arrival : arrivals_) {
      const int64_t consumed = arrival.unpack ? arrival.unpack->done() : 0;
      WEFT_ASSIGN_OR_RETURN(const bool credited, arrival.receive.Step(context, consumed));
      advanced |= credited;
      if (arrival.unpack) advanced |= arrival.unpack->Step(context, arrival.receive.done());
    }
    WEFT_ASSIGN_OR_RETURN(const bool sent, sends_.Step(context));
    return advanced || sent;
  }

  bool MoveComplete() const override {
    return std::all_of(pulls_.begin(), pulls_.end(), [](const RangeStream& s) { return s.finished(); }) &&
           std::all_of(arrivals_.begin(), arrivals_.end(), [](const Arrival& a) { return a.finished(); });
  }
  bool MoveDrained() const override { return MoveComplete() && sends_.finished(); }
  void AddAwaited(const OperationContext& /*context*/, std::set<int>& ranks) const override {
    for (const Arrival& arrival : arrivals_) {
      if (!arrival.finished()) ranks.insert(arrival.receive.peer());
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

  // Its row of this peer's table says where the part is.
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
    return AddPull(context, ViewOf(row, context.node.Map(row.place), plan().dtype), target);
  }

  // For parts that cannot travel as they lie.
  absl::Status TakeScratch(OperationContext& context) {
    int64_t arriving = 0;
    int64_t largest_send = 0;
    for (int member = 0; member < context.placement.size(); ++member) {
      if (context.placement.IsLocal(member)) continue;
      const TensorView& part = plan().sends[static_cast<size_t>(member)];
      if (!TravelsAsItLies(part)) largest_send = std::max(largest_send, part.elements());
      arriving += static_cast<int64_t>(RingBytes(context, plan().receives[static_cast<size_t>(member)]));
    }
    if (arriving > 0) {
      WEFT_ASSIGN_OR_RETURN(ring_, context.scratch.Acquire(static_cast<size_t>(arriving)));
    }
    const int64_t slot = std::min(largest_send, SliceElements(context, plan().dtype));
    slots_.emplace(kSenderSlots, CacheLines(static_cast<size_t>(slot) * SizeOf(plan().dtype)));
    return absl::OkStatus();
  }

  static bool TravelsAsItLies(const TensorView& part) { return IsEmptyPart(part) || part.IsContiguous(); }
  size_t RingBytes(const OperationContext& context, const TensorView& part) const {
    if (TravelsAsItLies(part)) return 0;
    const int64_t room = kRingSlices * SliceElements(context, plan().dtype);
    return CacheLines(static_cast<size_t>(std::min(part.elements(), room)) * SizeOf(plan().dtype));
  }
  CreditScheduler::Channel ChannelTo(const OperationContext& context, int member) const {
    return {context.record->lane, context.record->descriptor.sequence, context.placement.WorldRank(member),
            kExchangeChannel};
  }

  // `ring`: the scratch that is left.
  void AddArrival(OperationContext& context, int member, std::byte*& ring) {
    const TensorView& part = plan().receives[static_cast<size_t>(member)];
    const PartShape shape = PartShape::Of(part);
    const Slicing slicing{shape.elements(), SliceElements(context, plan().dtype)};
    const size_t ring_bytes = RingBytes(context, part);
    const bool direct = ring_bytes == 0;
    const SliceMemory place{direct ? static_cast<std::byte*>(part.data) : ring, SizeOf(plan().dtype),
                            direct ? 0 : std::min(kRingSlices, slicing.slices())};
    Arrival& arrival = arrivals_.emplace_back(Arrival{
        ReceiveStream(ChannelTo(context, member), WirePhase::kGather, slicing, place, shape), std::nullopt});
    if (direct) return;
    ring += ring_bytes;
    context.counters.copied_bytes += static_cast<int64_t>(part.bytes());
    arrival.unpack.emplace(RangeCopy::Unpack(part), slicing.slice_elements, place,
                           static_cast<std::byte*>(part.data));
  }

  void AddSend(OperationContext& context, int member) {
    const TensorView& part = plan().sends[static_cast<size_t>(member)];
    const PartShape shape = PartShape::Of(part);
    const Slicing slicing{shape.elements(), SliceElements(context, plan().dtype)};
    auto* memory = static_cast<std::byte*>(part.data);
    if (TravelsAsItLies(part)) {
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
  Buffer staged_;  // Parts for peers of the node that they could not read where they lie.
  Buffer ring_;    // What slices of parts with gaps land in.
  std::optional<ScratchSlots> slots_;
  std::deque<RangeStream> pulls_;
  std::deque<Arrival> arrivals_;
  Sends sends_;
};

}  // namespace

std::unique_ptr<Operation> MakeAllToAll(CollectivePlan plan) {
  return std::make_unique<AllToAllOperation>(std::move(plan));
}

}  // namespace weft
