#include "src/comm/collectives/last_arrival.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

// The word is kClaim * claims moved + kStates * rank + Moved. 0: no rank has published anything.
constexpr int64_t kStates = 8;
constexpr int64_t kClaim = int64_t{1} << 32;
// Progress counter of a rank: 1 while it writes what it has claimed.
constexpr int kClaimCounter = 0;
constexpr int64_t kOutputs = 1;  // Pieces of a rank that others may claim.

}  // namespace

LastArrival::Word::Word(const OperationContext& context)
    : node_(context.node),
      placement_(context.placement),
      group_(NodeLink::LocalGroupOf(context.record->lane, context.placement)),
      sequence_(context.record->descriptor.sequence) {}

void LastArrival::Word::Publish(Moved moved) const {
  const int rank = placement_.BootstrapRank(placement_.me());
  node_.SetWord(group_, sequence_, kStates * rank + static_cast<int64_t>(moved));
}

void LastArrival::Word::PublishAndWakePeers(Moved moved) const {
  Publish(moved);
  WakePeers();
}

void LastArrival::Word::WakePeers() const {
  for (const int peer : placement_.local_peers()) node_.Ring(placement_.BootstrapRank(peer));
}

Moved LastArrival::Word::moved() const {
  const int64_t word = value();
  return word == 0 ? Moved::kNothing : static_cast<Moved>(word % kStates);
}

std::optional<int> LastArrival::Word::publisher() const {
  const int64_t word = value();
  if (word == 0) return std::nullopt;
  return static_cast<int>(word % kClaim / kStates);
}

int64_t LastArrival::Word::claims_moved() const { return value() / kClaim; }

void LastArrival::Word::AddClaimMoved(int member, Claimed claimed) const {
  const int owner = placement_.BootstrapRank(member);
  node_.FinishPiece(group_.lane, owner, sequence_);
  if (claimed == Claimed::kOutput && member != placement_.me()) node_.Ring(owner);
  if (node_.AddToWord(group_, sequence_, kClaim) / kClaim == placement_.size()) WakePeers();
}

void LastArrival::Word::ShowClaim(bool is_moving) const {
  node_.SetCounter(group_.lane, sequence_, kClaimCounter, is_moving ? 1 : 0);
}

bool LastArrival::Word::IsMovingClaim(int member) const {
  return node_.Counter(group_.lane, placement_.BootstrapRank(member), sequence_, kClaimCounter) == 1;
}

void LastArrival::MoveAsLast(OperationContext& context, Moved outcome, MoveSize size,
                             std::function<void()> move) {
  outcome_ = outcome;
  last_.emplace(context);
  last_->Publish(Moved::kNothing);
  Issue(context, size, /*is_immediate=*/true, std::move(move));
}

void LastArrival::LeaveToAll(OperationContext& context) {
  outcome_ = Moved::kForNone;
  Word(context).PublishAndWakePeers(outcome_);
}

void LastArrival::OfferClaims(OperationContext& context, ClaimRule rule) {
  outcome_ = Moved::kByClaims;
  rule_ = rule;
  const Word word(context);
  if (rule == ClaimRule::kWaitingRanks) return word.PublishAndWakePeers(outcome_);
  word.Publish(outcome_);
  const GroupPlacement& placement = context.placement;
  for (const int peer : placement.local_peers()) context.node.RingIfAwake(placement.BootstrapRank(peer));
}

bool LastArrival::MoveClaimed(OperationContext& context, ClaimRule rule, Claimed claimed,
                              absl::FunctionRef<MoveSize(int)> size_of, std::function<void(int)> move) {
  const GroupPlacement& placement = context.placement;
  const OperationRecord& record = *context.record;
  rule_ = rule;
  claimed_ = claimed;
  const auto claim = [&](int member) {
    const int rank = placement.BootstrapRank(member);
    if (!context.node.ClaimPiece(record.lane, rank, record.descriptor.sequence, kOutputs)) return false;
    claim_.emplace(context);
    claim_->ShowClaim(true);
    claimed_member_ = member;
    const bool is_immediate = rule == ClaimRule::kLastRank || member == placement.me();
    Issue(context, size_of(member), is_immediate, [move, member] { move(member); });
    return true;
  };
  if (claim(placement.me())) return true;
  const bool is_writer =
      rule == ClaimRule::kLastRank && Word(context).publisher() == placement.BootstrapRank(placement.me());
  if (!context.is_ready_awaited && !context.is_release_awaited && !is_writer) return false;
  return std::any_of(placement.local_peers().begin(), placement.local_peers().end(), claim);
}

bool LastArrival::AreAllClaimsMoved(const OperationContext& context) {
  return Word(context).claims_moved() == context.placement.size();
}

bool LastArrival::IsOwnOutputMoved(const OperationContext& context) {
  const OperationRecord& record = *context.record;
  const int rank = context.placement.BootstrapRank(context.placement.me());
  return context.node.FinishedPieces(record.lane, rank, record.descriptor.sequence) == kOutputs;
}

void LastArrival::MoveOwn(OperationContext& context, MoveSize size, std::function<void()> move) {
  // Without the others' results, the data may be large.
  Issue(context, size, /*is_immediate=*/outcome_ == Moved::kForReachable, std::move(move));
}

void LastArrival::Issue(OperationContext& context, MoveSize size, bool is_immediate,
                        std::function<void()> move) {
  is_moving_ = true;
  move_ = std::move(move);
  const WholeMoveTask whole{this, size};
  if (is_immediate && context.tasks.RunAtOnce(whole)) return OnTaskDone(0);
  DataTask task{context.record, this, 0, context.priority, whole};
  task.is_immediate = is_immediate;
  context.tasks.Push(std::move(task));
}

void LastArrival::OnTaskDone(int64_t /*ticket*/) {
  is_moving_ = false;
  if (last_) last_->PublishAndWakePeers(outcome_);
  if (claim_) {
    claim_->AddClaimMoved(claimed_member_, claimed_);
    claim_->ShowClaim(false);
  }
  last_.reset();
  claim_.reset();
}

bool LastArrival::Poll(const OperationContext& context) {
  if (is_moving_) return false;
  if (outcome_ == Moved::kNothing) outcome_ = Word(context).moved();
  return outcome_ != Moved::kNothing;
}

void LastArrival::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  const bool is_decided = outcome_ != Moved::kNothing && outcome_ != Moved::kByClaims;
  if (is_moving_ || is_decided) return;
  const GroupPlacement& placement = context.placement;
  const Word word(context);
  const auto rank_of = [&](int member) { return placement.BootstrapRank(member); };
  for (const int peer : placement.local_peers()) {
    if (outcome_ == Moved::kByClaims && word.IsMovingClaim(peer)) ranks.insert(rank_of(peer));
  }
  if (!ranks.empty()) return;
  if (outcome_ == Moved::kByClaims && rule_ == ClaimRule::kWaitingRanks) {
    for (const int peer : placement.local_peers()) {
      if (!context.node.AllPiecesClaimed(context.record->lane, rank_of(peer),
                                         context.record->descriptor.sequence, kOutputs)) {
        ranks.insert(rank_of(peer));
      }
    }
    if (!ranks.empty()) return;
  }
  if (const std::optional<int> last = word.publisher(); last && *last != rank_of(placement.me())) {
    ranks.insert(*last);
    return;
  }
  for (const int peer : placement.local_peers()) ranks.insert(rank_of(peer));
}

}  // namespace weft
