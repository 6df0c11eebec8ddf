// Failures and leaving: notices of this rank to others, and of others to this rank.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/comm/engine/engine_core.h"
#include "src/comm/trees/node_graph.h"
#include "weft/core/status.h"

namespace weft {

absl::Status EngineCore::Leave() {
  const bool is_first = !std::exchange(leaving_, true);
  for (size_t i = 0; is_first && i < lanes_.size(); ++i) {
    if (lanes_[i] != nullptr) lanes_to_leave_.push_back(static_cast<int>(i));
  }
  if (!status_.ok()) return absl::OkStatus();  // Peers have a failure notice.
  WEFT_RETURN_IF_ERROR(LeaveLanes());
  return messages_.Leave();
}

absl::Status EngineCore::LeaveLanes() {
  std::vector<int> later;
  for (const int index : lanes_to_leave_) {
    // See Note [Descriptor ring].
    if (HasSlot(index, lanes_[static_cast<size_t>(index)]->submitted + 1)) {
      WEFT_RETURN_IF_ERROR(LeaveLane(index));
    } else {
      later.push_back(index);
    }
  }
  lanes_to_leave_ = std::move(later);
  return absl::OkStatus();
}

absl::Status EngineCore::CheckHasLeft() const {
  if (has_left_lanes()) return absl::OkStatus();
  const int index = lanes_to_leave_.front();
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  const uint64_t sequence = lane.submitted + 1 - NodeLink::kSlots;
  return absl::DeadlineExceededError(absl::StrCat(
      "lane ", lane.name, ": rank(s) ", absl::StrJoin(RanksYetToConsume(index, sequence), ", "),
      " have not consumed the operation of sequence ", sequence, "; the peers of ", lanes_to_leave_.size(),
      " lane(s) were not told that this rank has destroyed its engine, and wait for their deadlines"));
}

absl::Status EngineCore::LeaveLane(int index) {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  const GroupPlacement& placement = lane.placement;
  Descriptor descriptor;
  descriptor.sequence = lane.submitted + 1;
  descriptor.leaves = true;
  if (!placement.local_peers().empty()) {
    env_.node.Publish(index, descriptor);
    env_.node.Arrive(NodeLink::LocalGroupOf(index, placement), descriptor.sequence, HashOnNode(descriptor));
  }
  for (const int peer : placement.local_peers()) env_.node.Ring(placement.BootstrapRank(peer));
  for (const int node : NeighborNodes(placement.NodeOf(placement.me()), placement.node_count())) {
    const int peer = placement.BootstrapRank(placement.PartLeader(node, placement.me()));
    WEFT_RETURN_IF_ERROR(wire_.AnnounceEmptyPart({index, descriptor.sequence, peer, 0}, descriptor));
  }
  return absl::OkStatus();
}

absl::Status EngineCore::CheckPeerFailures() {
  peer_failure_ = env_.node.ReadFailure();
  if (!peer_failure_) peer_failure_ = mail_.failure();
  if (!peer_failure_) return absl::OkStatus();
  return absl::Status(peer_failure_->cause.code(),
                      absl::StrCat("rank ", peer_failure_->rank, ": ", peer_failure_->cause.message()));
}

std::map<int, const OperationRecord*> EngineCore::FirstAwaiting() {
  std::map<int, const OperationRecord*> first;
  for (const int index : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    for (const std::shared_ptr<OperationRecord>& record : lane.running) {
      for (const int rank : AwaitedRanks(*record)) first.try_emplace(rank, record.get());
    }
  }
  for (const std::shared_ptr<OperationRecord>& message : messages_.unfinished()) {
    const MessageRequest& request = *message->message;
    first.try_emplace(request.source == kAnySource ? request.peer : request.source, message.get());
  }
  return first;
}

absl::Status EngineCore::CheckLostPeers() {
  if (env_.link.LostPeers().empty()) return absl::OkStatus();
  const std::map<int, const OperationRecord*> awaiting = FirstAwaiting();
  for (const WireLink::LostPeer& lost : env_.link.LostPeers()) {
    const auto found = awaiting.find(lost.peer);
    if (found == awaiting.end()) continue;
    if (!lost.may_have_closed) return lost.cause;
    WEFT_RETURN_IF_ERROR(CheckClosedPeer(lost, *found->second));
  }
  return absl::OkStatus();
}

absl::Status EngineCore::CheckClosedPeer(const WireLink::LostPeer& lost, const OperationRecord& waiting) {
  constexpr int64_t kQuestionNs = LateRanks::kAnswerNs / 4;
  // The witnesses may have yet to learn of the leaving.
  constexpr int64_t kQuestionsNs = 2 * LateRanks::kAnswerNs;
  if (messages_.has_left(lost.peer)) {
    if (!waiting.message) return HasLeft(lost.peer, "submitted", waiting);
    return HasLeft(lost.peer, waiting.descriptor.kind == OpKind::kSend ? "received" : "sent", waiting);
  }
  Questions& questions = questions_.try_emplace(lost.peer, Questions{now_ns_, now_ns_}).first->second;
  if (now_ns_ - questions.begun_ns >= kQuestionsNs) return lost.cause;
  if (now_ns_ < questions.next_ns) return absl::OkStatus();
  questions.next_ns = now_ns_ + kQuestionNs;
  return messages_.AskAbout(lost.peer);
}

std::vector<int> EngineCore::FailureRecipients() const {
  constexpr int kRanksOfANode = 3;  // Notices pass a node unless so many of its ranks are silent.
  const std::vector<int>& node_of = env_.nodes.node_of_rank;
  const int own = node_of[static_cast<size_t>(env_.rank)];
  std::map<int, std::vector<int>> ranks_of;
  for (const int node : NeighborNodes(own, env_.nodes.node_count())) ranks_of[node];
  int place = 0;  // Of this rank in its node.
  for (int rank = 0; rank < env_.nodes.size(); ++rank) {
    const int node = node_of[static_cast<size_t>(rank)];
    if (node == own && rank < env_.rank) ++place;
    if (const auto found = ranks_of.find(node); found != ranks_of.end()) found->second.push_back(rank);
  }
  std::set<int> recipients;
  for (const auto& [node, ranks] : ranks_of) {
    const auto count = static_cast<int>(ranks.size());
    for (int i = 0; i < std::min(kRanksOfANode, count); ++i)
      recipients.insert(ranks[static_cast<size_t>((place + i) % count)]);
  }
  // Ranks outside of a group may have destroyed their engines, so notices also go along the group's nodes.
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const GroupPlacement& placement = lane->placement;
    for (const int node : NeighborNodes(placement.NodeOf(placement.me()), placement.node_count()))
      recipients.insert(placement.BootstrapRank(placement.PartLeader(node, placement.me())));
  }
  return {recipients.begin(), recipients.end()};
}

void EngineCore::Fail(const absl::Status& cause) {
  if (!status_.ok()) return;
  status_ = cause;
  broadcasting_failure_ = true;
  for (const int index : active_) RecordWaitOfFirst(*lanes_[static_cast<size_t>(index)]);
  const std::vector<std::shared_ptr<OperationRecord>> messages = messages_.unfinished();
  for (const auto& message : messages) env_.recorder.RecordWait(*message, messages_.DescribeWait(*message));
  env_.recorder.RecordFailure(cause);
  const NodeLink::FailureNotice notice = peer_failure_.value_or(NodeLink::FailureNotice{env_.rank, cause});
  env_.node.PublishFailure(notice);
  if (!peer_failure_ || env_.credit_rules.failures_are_relayed)
    mail_.BroadcastFailure(notice, FailureRecipients());
  wire_.Abandon();
  for (std::deque<DataTask>& tasks : tasks_) tasks.clear();
  for (const int index : std::exchange(active_, {})) {
    Lane& lane = *lanes_[static_cast<size_t>(index)];
    lane.active = false;
    for (auto* records : {&lane.running, &lane.queued}) {
      for (const std::shared_ptr<OperationRecord>& record : *records) FailRecord(record, cause);
      records->clear();
    }
  }
  for (const auto& message : messages) FailRecord(message, cause);
  unfinished_ = 0;
  env_.node.Ring(env_.rank);
}

void EngineCore::FailRecord(const std::shared_ptr<OperationRecord>& record, const absl::Status& cause) {
  record->error = cause;
  if (!record->IsReady()) record->state.store(OperationState::kFailed, std::memory_order_release);
  record->has_failed.store(true, std::memory_order_release);
  QueueCallbacks(*record, cause);
  env_.recorder.Record(*record);
  quarantine_.push_back(record);
}

void EngineCore::MoveAllMemoryTo(std::vector<std::shared_ptr<void>>& memory) {
  MoveReleasedMemoryTo(memory);
  for (const std::shared_ptr<OperationRecord>& record : quarantine_) {
    std::move(record->kept.begin(), record->kept.end(), std::back_inserter(memory));
    record->kept.clear();
  }
}

void EngineCore::ReleaseQuarantine() {
  for (const std::shared_ptr<OperationRecord>& record : quarantine_) {
    if (record->IsReady()) record->state.store(OperationState::kReleased, std::memory_order_release);
  }
}

}  // namespace weft
