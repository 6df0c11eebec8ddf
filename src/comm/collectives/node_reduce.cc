// Reduce-scatter and all-reduce of ranks on one node: each part is reduced straight out of all inputs, and
// written to its owner's output, or to everybody's.
//
// Note [Work stealing]
// A part is made in pieces, and pieces are *claimed*: first of all by the part's owner, but a rank that waits
// for the operation and has nothing left to do for itself goes on with its peers' parts. So a rank that comes
// late, shares its core or is interrupted holds up the others by a piece, not by its part. Who makes a piece
// changes neither its bits nor its place. An output outside node memory is for its owner alone.
//
// A rank makes one piece at a time. Its counter of a part is twice the number of pieces that it has made of
// it, plus one while it makes another: the part is whole when the counters of all ranks add up to its pieces.
// A rank that goes on from a part to something else rings, so that after the last piece somebody does.
//
// In place is safe: a piece reads and writes the same elements, and no other piece touches them.
#include <cstdint>
#include <utility>

#include "src/comm/collectives/operations.h"
#include "src/comm/collectives/reduce_phase.h"

namespace weft {
namespace {

constexpr int kNone = -1;

// A rank's share of the result.
struct NodePart {
  int rank;  // Its owner, in the bootstrap.
  Slicing pieces;
  bool reachable;                                     // Its output can be written from here.
  bool awaited;                                       // This rank's result comprises it.
  std::optional<ReduceStream> stream = std::nullopt;  // Once this rank makes a piece of it.
  int64_t made = 0;                                   // Pieces, by this rank.
  bool whole = false;
};

class NodeReduceOperation final : public Collective, private TaskOwner {
 public:
  NodeReduceOperation(const GroupPlacement& placement, CollectivePlan plan, bool to_all)
      : Collective(std::move(plan), {.input = !placement.local_peers().empty(),
                                     .output = to_all && !placement.local_peers().empty()}),
        to_all_(to_all) {}

 protected:
  absl::Status BeginMove(OperationContext& context) override {
    const GroupPlacement& placement = context.placement;
    for (int owner = 0; owner < placement.size(); ++owner) {
      const Slicing pieces{plan().parts.counts[static_cast<size_t>(owner)],
                           SliceElements(context, plan().dtype)};
      parts_.push_back({placement.WorldRank(owner), pieces, OutputOf(context, owner) != nullptr,
                        to_all_ || owner == placement.me()});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    const bool working = making_ != kNone && !piece_is_made_;
    const int left = working ? kNone : EndPiece(context);
    const bool found = FindWholeParts(context);
    const bool claimed = !working && ClaimAPiece(context);
    if (left != kNone && left != making_) RingAbout(context, left);
    return found || claimed || left != kNone;
  }
  bool MoveComplete() const override {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const NodePart& part) { return part.whole || !part.awaited; });
  }
  bool MoveDrained() const override { return MoveComplete() && making_ == kNone; }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    for (size_t owner = 0; owner < parts_.size(); ++owner) {
      const NodePart& part = parts_[owner];
      if (part.whole || !part.awaited) continue;
      if (!AllClaimed(context, part)) ranks.insert(part.rank);
      for (const int peer : context.placement.local_peers()) {
        const bool busy = CounterOf(context, peer, static_cast<int>(owner)) % 2 == 1;
        if (busy) ranks.insert(context.placement.WorldRank(peer));
      }
    }
    ranks.erase(context.placement.WorldRank(context.placement.me()));
  }

 private:
  void OnTaskDone(int64_t /*piece*/) override { piece_is_made_ = true; }

  std::byte* PlaceOf(const OperationContext& context, int member, int owner) const {
    // Published to be written to.
    auto* output = const_cast<std::byte*>(OutputOf(context, member));
    return to_all_ ? output + OffsetOf(owner) : output;
  }
  size_t OffsetOf(int owner) const {
    return static_cast<size_t>(plan().parts.offsets[static_cast<size_t>(owner)]) * SizeOf(plan().dtype);
  }

  ReduceStream StreamOf(const OperationContext& context, int owner) const {
    const GroupPlacement& placement = context.placement;
    std::vector<ReduceStream::Leaf> leaves;
    ReduceTarget target = TargetOf(placement, plan(), PlaceOf(context, owner, owner));
    for (int member = 0; member < placement.size(); ++member) {
      // Inputs are only read; SliceMemory serves targets too.
      auto* input = const_cast<std::byte*>(InputOf(context, member));
      leaves.push_back({SliceMemory{input + OffsetOf(owner), SizeOf(plan().dtype)}, plan().dtype});
      if (to_all_ && member != owner) target.copies.push_back(PlaceOf(context, member, owner));
    }
    ReduceProgram program =
        BuildReduceProgram(0, placement.size(), [](int lo, int n) { return n == 1 ? lo : kNone; });
    return {parts_[static_cast<size_t>(owner)].pieces, std::move(program), std::move(leaves), plan().reduce,
            std::move(target)};
  }

  // Whose part the piece was of, if there was one.
  int EndPiece(OperationContext& context) {
    if (making_ == kNone) return kNone;
    const int owner = std::exchange(making_, kNone);
    piece_is_made_ = false;
    ++parts_[static_cast<size_t>(owner)].made;
    Say(context, owner);
    return owner;
  }

  bool ClaimAPiece(OperationContext& context) {
    if (Claim(context, context.placement.me())) return true;
    const bool lends = MoveComplete() ? context.released_is_awaited : context.ready_is_awaited;
    const std::vector<int>& peers = context.placement.local_peers();
    return lends && std::any_of(peers.begin(), peers.end(), [&](int peer) { return Claim(context, peer); });
  }

  bool Claim(OperationContext& context, int owner) {
    NodePart& part = parts_[static_cast<size_t>(owner)];
    if (!part.reachable) return false;
    const OperationRecord& record = *context.record;
    const std::optional<int64_t> piece =
        context.node.Claim(record.lane, part.rank, record.descriptor.sequence, part.pieces.slices());
    if (!piece) return false;
    making_ = owner;
    Say(context, owner);
    if (!part.stream) part.stream.emplace(StreamOf(context, owner));
    part.stream->IssueInPlace(context, *piece, this);
    return true;
  }

  // How many pieces of a part this rank has made, and whether it makes one.
  void Say(OperationContext& context, int owner) const {
    const int64_t made = parts_[static_cast<size_t>(owner)].made;
    context.node.SetCounter(context.record->lane, context.record->descriptor.sequence, owner,
                            2 * made + (making_ == owner ? 1 : 0));
  }

  void RingAbout(OperationContext& context, int owner) const {
    for (const int peer : context.placement.local_peers()) {
      if (to_all_ || peer == owner) context.node.Ring(context.placement.WorldRank(peer));
    }
  }

  static int64_t CounterOf(const OperationContext& context, int member, int owner) {
    return context.node.Counter(context.record->lane, context.placement.WorldRank(member),
                                context.record->descriptor.sequence, owner);
  }
  static bool AllClaimed(const OperationContext& context, const NodePart& part) {
    return context.node.AllClaimed(context.record->lane, part.rank, context.record->descriptor.sequence,
                                   part.pieces.slices());
  }

  bool FindWholeParts(const OperationContext& context) {
    bool found = false;
    for (size_t owner = 0; owner < parts_.size(); ++owner) {
      NodePart& part = parts_[owner];
      if (part.whole || !part.awaited || !AllClaimed(context, part)) continue;
      int64_t made = 0;
      for (int member = 0; member < context.placement.size(); ++member) {
        made += CounterOf(context, member, static_cast<int>(owner)) / 2;
      }
      part.whole = made == part.pieces.slices();
      found |= part.whole;
    }
    return found;
  }

  const bool to_all_;           // An all-reduce.
  std::deque<NodePart> parts_;  // By owner. A deque: pieces name their stream.
  int making_ = kNone;          // Whose part this rank makes a piece of,
  bool piece_is_made_ = false;  // and whether that is done.
};

}  // namespace

std::unique_ptr<Operation> MakeNodeReduce(const GroupPlacement& placement, CollectivePlan plan) {
  const bool to_all = plan.kind == OpKind::kAllReduce;
  return std::make_unique<NodeReduceOperation>(placement, std::move(plan), to_all);
}

}  // namespace weft
