// Descriptions of what operations wait for, for errors and for the flight recorder.
#include <algorithm>
#include <set>
#include <string>

#include <absl/strings/str_cat.h>

#include "src/comm/base/named_ranks.h"
#include "src/comm/engine/engine_core.h"

namespace weft {
namespace {

// Run time after which the flight recorder gets the ranks that an operation waits for.
constexpr int64_t kSlowOperationNs = 1'000'000'000;

}  // namespace

std::set<int> EngineCore::RanksYetToConsume(int index, uint64_t sequence) const {
  const Lane& lane = *lanes_[static_cast<size_t>(index)];
  std::set<int> ranks;
  for (int peer : lane.placement.local_peers()) {
    const int rank = lane.placement.BootstrapRank(peer);
    if (env_.node.Consumed(index, rank) < sequence) ranks.insert(rank);
  }
  return ranks;
}

EngineCore::StartWait EngineCore::StartWaitOf(const OperationRecord& record) const {
  const Lane& lane = *lanes_[static_cast<size_t>(record.lane)];
  if (!lane.running.empty() && !lane.running.back()->IsReady())
    return {"is queued behind", lane.running.back().get()};
  if (record.after != nullptr && !record.after->IsReady()) return {"starts after", record.after.get()};
  if (record.gate != nullptr && record.gate->State() != OperationState::kReleased)
    return {"starts at the release of", record.gate.get()};
  if (!lane.queued.empty() && lane.queued.front().get() != &record)
    return {"is queued behind", lane.queued.front().get()};
  // The operation can only wait for its slot. See Note [Descriptor ring].
  if (lane.running.empty()) return {"is about to start", nullptr};
  return {"needs the descriptor slot of", lane.running.front().get()};
}

std::string EngineCore::DescribeStartWait(const OperationRecord& record) {
  const StartWait wait = StartWaitOf(record);
  if (wait.blocker == nullptr) return std::string(wait.reason);
  return absl::StrCat(wait.reason, " ", Describe(*wait.blocker), ", which ", DescribeWait(*wait.blocker));
}

std::set<int> EngineCore::AwaitedRanks(const OperationRecord& record) {
  Lane& lane = *lanes_[static_cast<size_t>(record.lane)];
  std::set<int> ranks;
  for (const auto& running : lane.running) {
    if (running.get() != &record || record.operation == nullptr) continue;
    ranks = record.operation->AwaitedRanks(ContextOf(lane, running));
    if (record.IsReady()) ranks.merge(RanksYetToConsume(record.lane, record.descriptor.sequence));
  }
  return ranks;
}

std::string EngineCore::DescribeWait(const OperationRecord& record) {
  if (record.message) return messages_.DescribeWait(record);
  if (record.State() == OperationState::kQueued) return DescribeStartWait(record);
  const std::set<int> ranks = AwaitedRanks(record);
  if (ranks.empty()) return "waits for data movement on this rank";
  return DescribeAwaited(ranks);
}

LateRanks::Awaited EngineCore::AwaitedBy(const OperationRecord& record) {
  LateRanks::Awaited awaited{true, {record.lane, record.descriptor.sequence}, {}};
  std::set<int> ranks;
  if (record.message) {
    if (record.message->peer != kAnySource) {
      ranks = {record.message->peer};
    } else {
      for (int rank = 0; rank < env_.nodes.size(); ++rank) ranks.insert(rank);
    }
  } else if (record.State() == OperationState::kQueued) {
    const StartWait wait = StartWaitOf(record);
    return wait.blocker == nullptr ? awaited : AwaitedBy(*wait.blocker);
  } else {
    ranks = AwaitedRanks(record);
  }
  ranks.erase(env_.rank);
  awaited.ranks.assign(ranks.begin(), ranks.end());
  return awaited;
}

LateRanks::Awaited EngineCore::AwaitedBy(const OperationNumber& number) {
  const auto index = static_cast<size_t>(number.lane);
  // The other end of a message has another number, if it has been submitted at all.
  const bool is_message = number.lane == kMessageLane;
  if (is_message || index >= lanes_.size() || lanes_[index] == nullptr ||
      number.sequence > lanes_[index]->submitted) {
    LateRanks::Awaited awaited{true, number, {}};
    if (const OperationRecord* own = OfWaitingThread()) awaited = AwaitedBy(*own);
    awaited.is_submitted = is_message;
    return awaited;
  }
  for (const auto* const records : {&lanes_[index]->running, &lanes_[index]->queued}) {
    for (const std::shared_ptr<OperationRecord>& record : *records) {
      if (record->descriptor.sequence == number.sequence) return AwaitedBy(*record);
    }
  }
  return {true, number, {}};  // It is *released* on this rank.
}

const OperationRecord* EngineCore::OfWaitingThread() const {
  for (const int index : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    for (const auto* const records : {&lane.running, &lane.queued}) {
      for (const std::shared_ptr<OperationRecord>& record : *records) {
        const uint64_t sequence = record->descriptor.sequence;
        const uint64_t awaited = record->IsReady()
                                     ? lane.awaited_until_release
                                     : std::max(lane.awaited_until_ready, lane.awaited_until_release);
        if (sequence <= awaited) return record.get();
      }
    }
  }
  for (const std::shared_ptr<OperationRecord>& message : messages_.unfinished()) {
    if (message->message->awaited) return message.get();
  }
  return nullptr;
}

const OperationRecord* EngineCore::FindUnfinished() const {
  return FindFirst([](const OperationRecord& /*record*/) { return true; });
}

const OperationRecord* EngineCore::FindMissedDeadline() const {
  return FindFirst([](const OperationRecord& record) { return record.missed_deadline.load(); });
}

const OperationRecord* EngineCore::FindFirst(
    absl::FunctionRef<bool(const OperationRecord&)> is_wanted) const {
  const auto find = [&](const auto& records) -> const OperationRecord* {
    const auto found =
        std::find_if(records.begin(), records.end(), [&](const auto& record) { return is_wanted(*record); });
    return found == records.end() ? nullptr : found->get();
  };
  for (const int index : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    for (const OperationRecord* const record : {find(lane.running), find(lane.queued)}) {
      if (record != nullptr) return record;
    }
  }
  return find(messages_.unfinished());
}

absl::Status EngineCore::DeadlineError(const OperationRecord& record, std::string_view others) {
  // The late and silent ranks come before the description of the wait, which may be long: a failure notice
  // to other nodes is cut to the size of a control message.
  const std::string unanswered = env_.link.DescribeUnanswered();
  return absl::DeadlineExceededError(absl::StrCat(Describe(record), ": deadline passed; ", ToAbsl(others),
                                                  DescribeWait(record), unanswered.empty() ? "" : "; ",
                                                  unanswered));
}

EngineCore::Inquiry EngineCore::Inquire(const OperationRecord& record) {
  Inquiry inquiry{now_ns_, {}, {}};
  for (const int rank : env_.nodes.RanksOf(env_.nodes.node_of_rank[static_cast<size_t>(env_.rank)])) {
    if (rank == env_.rank) continue;
    inquiry.heartbeats[rank] = env_.node.Heartbeats(rank);
    env_.node.Ring(rank);
  }
  if (!job_spans_nodes_) return inquiry;
  const LateRanks::Awaited awaited = AwaitedBy(record);
  inquiry.waits_in = awaited.waits_in;
  LateRanks::Messages messages;
  late_ranks_.Inquire(awaited, now_ns_, messages);
  Send(messages);
  return inquiry;
}

void EngineCore::AnswerQuestions() {
  LateRanks::Messages messages;
  const auto lookup = [this](const OperationNumber& number) { return AwaitedBy(number); };
  for (const LateRankQuestion& question : mail_.TakeQuestions())
    late_ranks_.OnQuestion(question, lookup, now_ns_, messages);
  for (const LateRankAnswer& answer : mail_.TakeAnswers()) late_ranks_.OnAnswer(answer, messages);
  late_ranks_.Poll(now_ns_, messages);
  Send(messages);
}

void EngineCore::Send(const LateRanks::Messages& messages) {
  for (const LateRankQuestion& question : messages.questions) mail_.Ask(question);
  for (const auto& [peer, answer] : messages.answers) mail_.Answer(peer, answer);
}

std::set<int> EngineCore::SilentOnNode(const Inquiry& inquiry) const {
  std::set<int> silent;
  for (const auto& [rank, beats] : inquiry.heartbeats) {
    if (env_.node.Heartbeats(rank) == beats) silent.insert(rank);
  }
  return silent;
}

bool EngineCore::IsAnswered(const Inquiry& inquiry) const {
  return (SilentOnNode(inquiry).empty() || now_ns_ - inquiry.begun_ns >= LateRanks::kAnswerNs) &&
         (!job_spans_nodes_ || late_ranks_.is_final(inquiry.waits_in));
}

std::string EngineCore::DescribeInquiry(const Inquiry& inquiry) const {
  return late_ranks_.Describe(inquiry.waits_in, SilentOnNode(inquiry));
}

void EngineCore::RecordSlowOperations() {
  if (now_ns_ < next_slow_check_ns_) return;
  next_slow_check_ns_ = now_ns_ + kSlowOperationNs;
  if (const absl::Status asked = messages_.AskWitnesses(); !asked.ok()) return Fail(asked);
  for (const auto& message : messages_.unfinished())
    env_.recorder.RecordWait(*message, messages_.DescribeWait(*message));
  for (const int index : active_) {
    const Lane& lane = *lanes_[static_cast<size_t>(index)];
    if (!lane.running.empty() && now_ns_ - lane.running.front()->started_ns < kSlowOperationNs) continue;
    RecordWaitOfFirst(lane);
  }
}

void EngineCore::RecordWaitOfFirst(const Lane& lane) {
  for (const auto& record : lane.running) {
    if (record->IsReady()) continue;
    env_.recorder.RecordWait(*record, DescribeWait(*record));
    return;
  }
}

}  // namespace weft
