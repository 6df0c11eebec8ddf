// Reduce-scatter and all-reduce of a group on one node. Each part is reduced directly from the inputs of all
// ranks, and written to the owner's output (reduce-scatter) or to the outputs of all ranks (all-reduce). If
// the ranks are in several share domains, inputs are reduced in each domain first: see Note [Domain sums].
//
// Note [Work stealing]
// Problem: a rank that submits late, shares its core or is interrupted would delay its peers by the time that
// its whole part takes.
// Rule: a part is reduced in pieces, and each piece is *claimed* by one rank. A rank claims the pieces of
// its own part first. Once none are left, a rank that waits for the operation claims pieces of its peers'
// parts. Only the owner can claim pieces of a part whose output lies outside node memory. A rank reduces
// one piece at a time. A counter of the part has the number of its finished pieces; the part is complete
// once all are. A rank that moves on to another part rings the doorbells of the waiting peers, so that some
// rank rings after the last piece. Errors name the ranks that are awaited: each rank publishes a counter
// for each part, which is odd while the rank reduces a piece of it.
// Why it suffices: neither the bits nor the target of a piece depend on the rank that reduces it. A late rank
// delays its peers by one piece at most.
//
// Ranks whose buffers peers cannot reach reduce no pieces of each other: see Note [Staging rings].
//
// In place is safe: a piece reads and writes the same elements, and no other piece touches them.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/comm/collectives/operations.h"
#include "src/comm/phases/domain_reduce.h"
#include "src/comm/phases/reduce_phase.h"

namespace weft {
namespace {

constexpr int kNone = -1;

// The part of the result that one rank owns.
struct NodePart {
  int rank;  // Bootstrap rank of the owner.
  Slicing pieces;
  bool is_writable;                                   // This rank can write the part's output.
  bool is_needed;                                     // This rank's result contains the part.
  std::optional<ReduceStream> stream = std::nullopt;  // Set once this rank has claimed a piece.
  int64_t progress = 0;                               // This rank's counter of the part.
  bool is_complete = false;
};

class NodeReduceOperation final : public Collective, private TaskOwner {
 public:
  NodeReduceOperation(const GroupPlacement& placement, CollectivePlan&& plan, bool to_all)
      : Collective(std::move(plan), {.input = !placement.local_peers().empty(),
                                     .output = to_all && !placement.local_peers().empty()}),
        to_all_(to_all) {}

 protected:
  bool takes_rings() const override { return true; }

  absl::Status BeginMove(OperationContext& context) override {
    staged_ = MakeStagedPhase(context);
    if (staged_) return absl::OkStatus();
    const GroupPlacement& placement = context.placement;
    if (DomainSums::Applies(placement)) {
      const int me = placement.me();
      DomainReduce::Memory memory{LocalInputs(context), OutputPart(context, me, me), {}};
      for (const int peer : placement.local_peers()) {
        if (to_all_) memory.copies.push_back(OutputPart(context, peer, me));
      }
      WEFT_ASSIGN_OR_RETURN(domain_reduce_, DomainReduce::Create(context, plan(), std::move(memory)));
      return absl::OkStatus();
    }
    for (int owner = 0; owner < placement.size(); ++owner) {
      const Slicing pieces{plan().parts.counts[static_cast<size_t>(owner)],
                           SliceElements(context, plan().dtype)};
      parts_.push_back({placement.BootstrapRank(owner), pieces, OutputOf(context, owner) != nullptr,
                        to_all_ || owner == placement.me()});
    }
    // Each rank counts its own part, whichever rank reduces the pieces.
    StreamOf(context, placement.me()).CountCrossing(context);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Move(OperationContext& context) override {
    if (staged_) return staged_->Step(context);
    if (domain_reduce_) return domain_reduce_->Step(context);
    const bool busy = current_part_ != kNone && !piece_is_done_;
    const int finished = busy ? kNone : FinishPiece(context);
    const bool found = FindCompleteParts(context);
    const bool claimed = !busy && ClaimNextPiece(context);
    if (finished != kNone && finished != current_part_) RingWaitingPeers(context, finished);
    return found || claimed || finished != kNone;
  }
  bool MoveComplete() const override {
    if (staged_) return staged_->complete();
    if (domain_reduce_) return domain_reduce_->complete();
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const NodePart& part) { return part.is_complete || !part.is_needed; });
  }
  bool MoveDrained() const override {
    return domain_reduce_ ? domain_reduce_->drained() : MoveComplete() && current_part_ == kNone;
  }

  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const override {
    if (staged_) return staged_->AddAwaited(context, ranks);
    if (domain_reduce_) return domain_reduce_->AddAwaited(context, ranks);
    for (size_t owner = 0; owner < parts_.size(); ++owner) {
      const NodePart& part = parts_[owner];
      if (part.is_complete || !part.is_needed) continue;
      if (!AllPiecesClaimed(context, part)) ranks.insert(part.rank);
      for (const int peer : context.placement.local_peers()) {
        const bool busy = context.CounterOf(peer, static_cast<int>(owner)) % 2 == 1;
        if (busy) ranks.insert(context.placement.BootstrapRank(peer));
      }
    }
    ranks.erase(context.placement.BootstrapRank(context.placement.me()));
  }

 private:
  void OnTaskDone(int64_t /*piece*/) override { piece_is_done_ = true; }

  // Address of the part of `owner` in the output of `member`.
  std::byte* OutputPart(const OperationContext& context, int member, int owner) const {
    // The member published its output for this rank to write to.
    auto* output = const_cast<std::byte*>(OutputOf(context, member));
    return to_all_ ? output + OffsetOf(owner) : output;
  }
  size_t OffsetOf(int owner) const {
    return static_cast<size_t>(BytesOf(plan().parts.offsets[static_cast<size_t>(owner)], plan().dtype));
  }

  ReduceStream StreamOf(const OperationContext& context, int owner) const {
    const GroupPlacement& placement = context.placement;
    std::vector<ReduceStream::Leaf> leaves;
    ReduceTarget target = TargetOf(placement, plan(), OutputPart(context, owner, owner));
    int crossing_outputs = 0;
    for (int member = 0; member < placement.size(); ++member) {
      const bool crosses = !placement.IsInDomain(member);
      leaves.push_back({PartMemory(plan().parts, WholeInputOf(context, member), owner, SizeOf(plan().dtype)),
                        plan().dtype, crosses});
      if (crosses && (to_all_ || member == owner)) ++crossing_outputs;
      if (to_all_ && member != owner) target.copies.push_back(OutputPart(context, member, owner));
    }
    ReduceProgram program = ReduceProgramOfRanks(0, placement.size());
    ReduceStream stream(parts_[static_cast<size_t>(owner)].pieces, std::move(program), std::move(leaves),
                        plan().reduce, std::move(target));
    stream.SetCrossingOutputs(crossing_outputs);
    return stream;
  }

  // Ends the current piece. Returns the owner of its part, or kNone if there is no current piece.
  int FinishPiece(OperationContext& context) {
    if (current_part_ == kNone) return kNone;
    const int owner = std::exchange(current_part_, kNone);
    piece_is_done_ = false;
    const OperationRecord& record = *context.record;
    context.node.FinishPiece(record.lane, parts_[static_cast<size_t>(owner)].rank,
                             record.descriptor.sequence);
    CountProgress(context, owner);
    return owner;
  }

  bool ClaimNextPiece(OperationContext& context) {
    if (ClaimPiece(context, context.placement.me())) return true;
    const bool steals = MoveComplete() ? context.is_release_awaited : context.is_ready_awaited;
    const std::vector<int>& peers = context.placement.local_peers();
    return steals &&
           std::any_of(peers.begin(), peers.end(), [&](int peer) { return ClaimPiece(context, peer); });
  }

  bool ClaimPiece(OperationContext& context, int owner) {
    NodePart& part = parts_[static_cast<size_t>(owner)];
    if (!part.is_writable) return false;
    const OperationRecord& record = *context.record;
    const std::optional<int64_t> piece =
        context.node.ClaimPiece(record.lane, part.rank, record.descriptor.sequence, part.pieces.slices());
    if (!piece) return false;
    current_part_ = owner;
    CountProgress(context, owner);
    if (!part.stream) part.stream.emplace(StreamOf(context, owner));
    part.stream->IssueToTarget(context, *piece, this);
    return true;
  }

  // Counts the begin or the end of a piece in this rank's counter of a part.
  void CountProgress(OperationContext& context, int owner) {
    context.SetCounter(owner, ++parts_[static_cast<size_t>(owner)].progress);
  }

  void RingWaitingPeers(OperationContext& context, int owner) const {
    for (const int peer : context.placement.local_peers()) {
      if (to_all_ || peer == owner) context.node.Ring(context.placement.BootstrapRank(peer));
    }
  }

  static bool AllPiecesClaimed(const OperationContext& context, const NodePart& part) {
    return context.node.AllPiecesClaimed(context.record->lane, part.rank, context.record->descriptor.sequence,
                                         part.pieces.slices());
  }

  bool FindCompleteParts(const OperationContext& context) {
    bool found = false;
    const OperationRecord& record = *context.record;
    for (NodePart& part : parts_) {
      if (part.is_complete || !part.is_needed) continue;
      part.is_complete = context.node.FinishedPieces(record.lane, part.rank, record.descriptor.sequence) ==
                         part.pieces.slices();
      found |= part.is_complete;
    }
    return found;
  }

  const bool to_all_;  // True for an all-reduce.
  // If one of these is set, the members below are not used.
  std::unique_ptr<StagedPhase> staged_;
  std::unique_ptr<DomainReduce> domain_reduce_;
  std::deque<NodePart> parts_;  // By owner. A deque: tasks hold pointers to the streams.
  int current_part_ = kNone;    // Owner of the part of the piece that this rank has claimed.
  bool piece_is_done_ = false;  // The task of that piece has finished.
};

}  // namespace

std::unique_ptr<Operation> MakeNodeReduce(const GroupPlacement& placement, CollectivePlan&& plan) {
  const bool to_all = plan.kind == OpKind::kAllReduce;
  return std::make_unique<NodeReduceOperation>(placement, std::move(plan), to_all);
}

}  // namespace weft
