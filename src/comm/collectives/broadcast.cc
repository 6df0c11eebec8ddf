// Broadcast over several nodes. One rank of each node, here its *leader*, takes part in the traffic between
// nodes: the root on its own node, and the part leader for the root on every other node. Each half of the
// message travels along a tree of nodes, slice by slice: see Note [Broadcast trees]. A leader sends a slice
// on as soon as it has arrived. The other ranks of a node copy slices from the root's input, or from their
// leader's output as its counters grow.
//
// Note [Confirmed edges]
// Problem: a rank must not finish while a rank of a neighboring node runs a different operation: neither
// would then compare descriptors with the other, and the neighbor would wait until its deadline.
// Rule: the ranks of an edge of a tree exchange descriptors in both directions. The receiver's travels with
// its credits, the sender's in an announcement. An operation is not *released* before it has the descriptors
// of all its edges. A rank that is not its node's leader waits until its leader has them.
// Why it suffices: the trees connect all nodes, and their edges do not depend on the root. If not all ranks
// submit the same operation, two neighbors differ.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/collectives/operations.h"
#include "src/comm/phases/sends.h"
#include "src/comm/trees/broadcast_tree.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// A message of at most this size travels along one tree: a second message costs more than the bytes.
constexpr int64_t kMaxUndividedBytes = 4096;
// The first half ends at a multiple of this, which is a block of the encodings.
constexpr int64_t kHalfAlignment = 256;

int DataChannel(int tree) { return tree; }
int AnnouncementChannel(int tree) { return kBroadcastTrees + tree; }

// Counters of a leader: slices of each half that local peers may copy, and the end of its exchanges.
int SlicesCounter(int tree) { return tree; }
constexpr int kConfirmedCounter = kBroadcastTrees;

class BroadcastOperation final : public Collective {
 public:
  BroadcastOperation(const GroupPlacement& placement, CollectivePlan&& plan)
      : Collective(std::move(plan), SharingOf(placement, plan.root)) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const int64_t count = plan().parts.total();
    const bool divided = count * ElementBytes() > kMaxUndividedBytes;
    const int64_t blocks = (count + kHalfAlignment - 1) / kHalfAlignment;
    const int64_t first = divided ? std::min(count, (blocks + 1) / 2 * kHalfAlignment) : count;
    WEFT_RETURN_IF_ERROR(AddHalf(context, 0, first));
    return divided ? AddHalf(context, first, count - first) : absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    bool advanced = false;
    for (Half& half : halves_) {
      WEFT_ASSIGN_OR_RETURN(const bool moved, StepHalf(context, half));
      advanced |= moved;
    }
    return StepConfirmation(context) || advanced;
  }
  bool MoveComplete() const override {
    return std::all_of(halves_.begin(), halves_.end(), [](const Half& half) { return half.complete(); });
  }
  bool MoveDrained() const override { return MoveComplete() && confirmed_; }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    const GroupPlacement& placement = context.placement;
    for (const Half& half : halves_) {
      if (half.source && (!half.receive->finished() || !half.source_has_announced))
        ranks.insert(half.source->peer);
      half.sends.AddAwaited(ranks);
      if (half.pull && !half.pull->finished()) ranks.insert(placement.BootstrapRank(LeaderOf(placement)));
    }
    if (!IsLeader(placement) && !confirmed_) ranks.insert(placement.BootstrapRank(LeaderOf(placement)));
  }

 private:
  // One half of the message. Its number is that of its tree.
  struct Half {
    explicit Half(size_t slot_bytes) : slots(slot_bytes, kBroadcastTrees) {}

    Slicing slicing;
    std::optional<CreditScheduler::Channel> source;  // Between nodes. The members below are set with it.
    std::optional<ReceiveStream> receive;
    std::optional<CopyStream> unpack;  // Decodes slices into the output.
    bool source_has_announced = false;
    std::deque<CreditScheduler::Channel> targets;  // Channels of the announcements that are to be sent.
    Buffer ring;                                   // Received slices that are encoded.
    ScratchSlots slots;                            // Encoded slices to send.
    Sends sends;
    std::optional<CopyStream> pull;  // Within the node.
    int64_t announced = 0;           // Slices that local peers know to be valid.

    int64_t received() const { return unpack ? unpack->done() : receive->done(); }
    bool complete() const {
      if (pull) return pull->finished();
      return !source || received() == slicing.slices();
    }
    bool confirmed() const { return complete() && sends.finished() && (!source || source_has_announced); }
  };

  static int LeaderOf(const GroupPlacement& placement, int root) {
    return placement.PartLeader(placement.NodeOf(placement.me()), root);
  }
  int LeaderOf(const GroupPlacement& placement) const { return LeaderOf(placement, plan().root); }
  bool IsLeader(const GroupPlacement& placement) const { return LeaderOf(placement) == placement.me(); }
  // Peers read the root's input and the outputs of the other leaders.
  static Sharing SharingOf(const GroupPlacement& placement, int root) {
    const bool leads = !placement.local_peers().empty() && LeaderOf(placement, root) == placement.me();
    return {.input = leads && root == placement.me(), .output = leads && root != placement.me()};
  }

  int64_t ElementBytes() const { return static_cast<int64_t>(SizeOf(plan().dtype)); }
  // The half that begins at `element` of a buffer. The buffer may be one that is only read.
  SliceMemory HalfAt(const std::byte* buffer, int64_t element) const {
    return {const_cast<std::byte*>(buffer) + element * ElementBytes(), SizeOf(plan().dtype)};
  }
  // This rank's memory that has the message in the end.
  const std::byte* Message(const GroupPlacement& placement) const {
    return placement.me() == plan().root ? plan().input : plan().output;
  }

  absl::Status AddHalf(OperationContext& context, int64_t begin, int64_t elements) {
    const auto tree = static_cast<int>(halves_.size());
    const GroupPlacement& placement = context.placement;
    const Slicing slicing{elements, SliceElements(context, plan().dtype)};
    const WireEncoding encoding = WireEncodingOf(context, plan().dtype);
    const SliceMemory ring{nullptr, SizeOf(plan().dtype), 0, encoding};
    Half& half = halves_.emplace_back(ring.SlotBytes(slicing));
    half.slicing = slicing;
    if (!IsLeader(placement)) {
      const int leader = LeaderOf(placement);
      const std::byte* from = leader == plan().root ? InputOf(context, leader) : OutputOf(context, leader);
      const bool nontemporal = ShouldBypassCaches(static_cast<size_t>(plan().parts.total() * ElementBytes()) *
                                                  (1 + placement.local_peers().size()));
      half.pull.emplace(slicing, plan().dtype, HalfAt(from, begin), HalfAt(plan().output, begin),
                        nontemporal);
      return absl::OkStatus();
    }
    const BroadcastEdges edges = EdgesOfBroadcast(tree, placement.node_count(), placement.NodeOf(plan().root),
                                                  placement.NodeOf(placement.me()));
    const auto channel_to = [&](int node, int number) {
      return CreditScheduler::Channel{context.record->lane, context.record->descriptor.sequence,
                                      placement.BootstrapRank(placement.PartLeader(node, plan().root)),
                                      number};
    };
    if (edges.source)
      WEFT_RETURN_IF_ERROR(
          AddSource(context, half, channel_to(*edges.source, DataChannel(tree)), ring, begin));
    for (const int node : edges.targets) {
      half.targets.push_back(channel_to(node, AnnouncementChannel(tree)));
      half.sends.AddPart(channel_to(node, DataChannel(tree)),
                         {slicing, plan().dtype, HalfAt(Message(placement), begin), encoding}, half.slots);
    }
    return absl::OkStatus();
  }

  // The halves use the windows of different phases. See Note [Credits].
  absl::Status AddSource(OperationContext& context, Half& half, const CreditScheduler::Channel& channel,
                         SliceMemory ring, int64_t begin) {
    const WirePhase window = halves_.size() == 1 ? WirePhase::kGather : WirePhase::kReduce;
    const bool from_root = channel.peer == context.placement.BootstrapRank(plan().root);
    const auto source = from_root ? ReceiveStream::Source::kReady : ReceiveStream::Source::kProduced;
    const SliceMemory output = HalfAt(plan().output, begin);
    const bool encoded = ring.encoding != WireEncoding::kPlain;
    if (encoded && half.slicing.elements > 0) {
      if (ring_slices_ == 0) ring_slices_ = RingSlices(context, kBroadcastTrees);
      ring.ring_slices = ring_slices_;
      WEFT_ASSIGN_OR_RETURN(half.ring, context.scratch.Acquire(ring.RingBytes(half.slicing)));
      ring.base = half.ring.data();
      half.unpack.emplace(CopyStream::FromRing(half.slicing, plan().dtype, ring, output));
    }
    half.source = channel;
    half.receive.emplace(channel, window, half.slicing, half.unpack ? ring : output, source);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> StepHalf(OperationContext& context, Half& half) {
    if (half.pull) return StepPull(context, half);
    while (!half.targets.empty()) {
      WEFT_RETURN_IF_ERROR(context.wire.AnnounceEmptyPart(half.targets.front(), context.record->descriptor));
      half.targets.pop_front();
    }
    bool advanced = false;
    int64_t available = kAllSlices;
    if (half.source) {
      WEFT_ASSIGN_OR_RETURN(advanced, half.receive->Step(context, half.received()));
      if (half.unpack) advanced |= half.unpack->Step(context, half.receive->done());
      available = half.received();
      advanced |= AnnounceToPeers(context, half);
      CreditScheduler::Channel announcement = *half.source;
      announcement.number = AnnouncementChannel(half.source->number);
      if (!half.source_has_announced && context.wire.CreditOf(announcement)) {
        half.source_has_announced = true;
        advanced = true;
      }
    }
    WEFT_ASSIGN_OR_RETURN(const bool sent, half.sends.Step(context, available));
    return advanced || sent;
  }

  bool StepPull(OperationContext& context, Half& half) {
    const GroupPlacement& placement = context.placement;
    const int leader = LeaderOf(placement);
    const int64_t available =
        leader == plan().root ? kAllSlices : context.CounterOf(leader, SlicesCounter(NumberOf(half)));
    return half.pull->Step(context, available);
  }

  // Tells local peers how many slices of this rank's output are valid.
  bool AnnounceToPeers(OperationContext& context, Half& half) {
    if (half.announced == half.received() || context.placement.local_peers().empty()) return false;
    half.announced = half.received();
    context.AnnounceToLocalPeers(SlicesCounter(NumberOf(half)), half.announced);
    return true;
  }

  // See Note [Confirmed edges].
  bool StepConfirmation(OperationContext& context) {
    if (confirmed_) return false;
    if (!IsLeader(context.placement)) {
      confirmed_ = context.CounterOf(LeaderOf(context.placement), kConfirmedCounter) != 0;
      return confirmed_;
    }
    confirmed_ =
        std::all_of(halves_.begin(), halves_.end(), [](const Half& half) { return half.confirmed(); });
    if (confirmed_) context.AnnounceToLocalPeers(kConfirmedCounter, 1);
    return confirmed_;
  }

  int NumberOf(const Half& half) const { return &half == &halves_.front() ? 0 : 1; }

  int64_t ring_slices_ = 0;  // Slices of the ring of each half. 0 until one is needed.
  std::deque<Half> halves_;  // A deque: tasks hold pointers to the streams.
  bool confirmed_ = false;   // All edges of this rank's node have exchanged descriptors.
};

}  // namespace

std::unique_ptr<Operation> MakeBroadcast(const GroupPlacement& placement, CollectivePlan&& plan) {
  return std::make_unique<BroadcastOperation>(placement, std::move(plan));
}

}  // namespace weft
