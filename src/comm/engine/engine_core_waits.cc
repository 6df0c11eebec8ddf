// Descriptions of what operations wait for, for errors and for the flight recorder.
#include <set>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

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
    const int rank = lane.placement.WorldRank(peer);
    if (env_.node.Consumed(index, rank) < sequence) ranks.insert(rank);
  }
  return ranks;
}

std::string EngineCore::DescribeStartWait(const OperationRecord& record) {
  Lane& lane = *lanes_[static_cast<size_t>(record.lane)];
  if (!lane.running.empty() && !lane.running.back()->IsReady()) {
    return absl::StrCat("is queued behind ", Describe(*lane.running.back()), ", which ",
                        DescribeWait(*lane.running.back()));
  }
  if (record.after != nullptr && !record.after->IsReady())
    return absl::StrCat("starts after ", Describe(*record.after));
  if (record.gate != nullptr && record.gate->State() != OperationState::kReleased)
    return absl::StrCat("starts at the release of ", Describe(*record.gate), ", which ",
                        DescribeWait(*record.gate));
  if (!lane.queued.empty() && lane.queued.front().get() != &record) {
    return absl::StrCat("is queued behind ", Describe(*lane.queued.front()), ", which ",
                        DescribeStartWait(*lane.queued.front()));
  }
  // The operation can only wait for its slot. See Note [Descriptor ring].
  if (lane.running.empty()) return "is about to start";
  return absl::StrCat("needs the descriptor slot of ", Describe(*lane.running.front()), ", which ",
                      DescribeWait(*lane.running.front()));
}

std::string EngineCore::DescribeWait(const OperationRecord& record) {
  if (record.message) return messages_.DescribeWait(record);
  Lane& lane = *lanes_[static_cast<size_t>(record.lane)];
  if (record.State() == OperationState::kQueued) return DescribeStartWait(record);
  std::set<int> ranks;
  for (const auto& running : lane.running) {
    if (running.get() != &record || record.operation == nullptr) continue;
    ranks = record.operation->AwaitedRanks(ContextOf(lane, running, false));
    if (record.IsReady()) ranks.merge(RanksYetToConsume(record.lane, record.descriptor.sequence));
  }
  if (ranks.empty()) return "waits for data movement on this rank";
  return absl::StrCat("waits for rank(s) ", absl::StrJoin(ranks, ", "));
}

void EngineCore::RecordSlowOperations() {
  if (now_ns_ < next_slow_check_ns_) return;
  next_slow_check_ns_ = now_ns_ + kSlowOperationNs;
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
