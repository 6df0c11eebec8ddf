#include "src/comm/collectives/last_arrival.h"

#include <utility>

namespace weft {
namespace {

// The word is kStates * rank + Moved. 0: no rank has told anything.
constexpr int64_t kStates = 4;

}  // namespace

LastArrival::Word::Word(const OperationContext& context)
    : node_(context.node),
      placement_(context.placement),
      meeting_(NodeLink::MeetingOf(context.record->lane, context.placement)),
      sequence_(context.record->descriptor.sequence) {}

void LastArrival::Word::Tell(Moved moved) const {
  const int rank = placement_.WorldRank(placement_.me());
  node_.SetWord(meeting_, sequence_, kStates * rank + static_cast<int64_t>(moved));
}

void LastArrival::Word::TellAndWakePeers(Moved moved) const {
  Tell(moved);
  for (const int peer : placement_.local_peers()) node_.Ring(placement_.WorldRank(peer));
}

Moved LastArrival::Word::moved() const {
  const int64_t told = value();
  return told == 0 ? Moved::kNothing : static_cast<Moved>((told - 1) % kStates + 1);
}

std::optional<int> LastArrival::Word::teller() const {
  const int64_t told = value();
  if (told == 0) return std::nullopt;
  return static_cast<int>((told - 1) / kStates);
}

void LastArrival::MoveAsLast(OperationContext& context, Moved outcome, size_t bytes,
                             std::function<void()> move) {
  outcome_ = outcome;
  last_.emplace(context);
  last_->Tell(Moved::kNothing);
  Issue(context, bytes, std::move(move));
}

void LastArrival::LeaveToAll(OperationContext& context) {
  outcome_ = Moved::kForNone;
  Word(context).TellAndWakePeers(outcome_);
}

void LastArrival::MoveOwn(OperationContext& context, size_t bytes, std::function<void()> move) {
  Issue(context, bytes, std::move(move));
}

void LastArrival::Issue(OperationContext& context, size_t bytes, std::function<void()> move) {
  is_moving_ = true;
  move_ = std::move(move);
  DataTask task{context.record, this, 0, context.priority, WholeMoveTask{this, bytes}};
  task.is_immediate = true;
  context.tasks.Push(std::move(task));
}

void LastArrival::OnTaskDone(int64_t /*ticket*/) {
  is_moving_ = false;
  if (!last_) return;
  last_->TellAndWakePeers(outcome_);
  last_.reset();
}

bool LastArrival::Poll(const OperationContext& context) {
  if (is_moving_) return false;
  if (outcome_ == Moved::kNothing) outcome_ = Word(context).moved();
  return outcome_ != Moved::kNothing;
}

void LastArrival::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  if (is_moving_ || outcome_ != Moved::kNothing) return;
  if (const std::optional<int> last = Word(context).teller()) {
    ranks.insert(*last);
    return;
  }
  const GroupPlacement& placement = context.placement;
  for (const int peer : placement.local_peers()) ranks.insert(placement.WorldRank(peer));
}

}  // namespace weft
