#include "src/comm/engine/recorder.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "src/comm/base/named_ranks.h"
#include "weft/core/status.h"

namespace weft {

void Recorder::RecordLane(int lane, std::string name, std::vector<int> ranks) {
  const MutexLock lock(mutex_);
  lanes_[lane] = Lane{std::move(name), std::move(ranks)};
}

void Recorder::SetPhase(std::string phase) {
  const MutexLock lock(mutex_);
  phase_ = std::move(phase);
}

void Recorder::RecordFailure(const absl::Status& cause) {
  const MutexLock lock(mutex_);
  failure_ = cause;
  ++failure_number_;
}

void Recorder::RecordReset(uint32_t generation) {
  const MutexLock lock(mutex_);
  failure_ = absl::OkStatus();
  ++failure_number_;
  generation_ = generation;
  for (auto& [index, lane] : lanes_) lane.submitted = 0;
}

int64_t Recorder::failure_number() const {
  const MutexLock lock(mutex_);
  return failure_number_;
}

absl::Status Recorder::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

Recorder::Entry* Recorder::Find(const OperationRecord& record) {
  // Newest first: most calls are for a recent operation.
  for (size_t back = 1; back <= ring_.size(); ++back) {
    Entry& entry = ring_[(next_ + ring_.size() - back) % ring_.size()];
    if (entry.lane == record.lane && entry.descriptor.sequence == record.descriptor.sequence &&
        entry.descriptor.generation == record.descriptor.generation) {
      return &entry;
    }
  }
  return nullptr;
}

Recorder::Entry& Recorder::Add(const OperationRecord& record) {
  if (!record.message && record.descriptor.generation == generation_) {  // Messages have no lane.
    Lane& lane = lanes_[record.lane];
    lane.submitted = std::max(lane.submitted, record.descriptor.sequence);
  }
  if (ring_.size() < capacity_) {
    ring_.emplace_back();
    next_ = ring_.size() - 1;
  } else {
    SkipRunning();
  }
  // The entry keeps the memory of its strings, so that a recurring operation allocates none.
  Entry& entry = ring_[next_];
  next_ = (next_ + 1) % capacity_;
  entry.lane = record.lane;
  entry.lane_name = record.lane_name;
  entry.label = record.label;
  entry.bytes = record.logical_bytes;
  entry.descriptor = record.descriptor;
  entry.message.clear();
  if (record.message) entry.message = DescribeMessage(record);
  entry.waiting_for.clear();
  return entry;
}

void Recorder::Record(const OperationRecord& record) {
  const MutexLock lock(mutex_);
  Entry* entry = Find(record);
  Update(entry == nullptr ? Add(record) : *entry, record);
}

void Recorder::RecordNew(const OperationRecord& record) {
  const MutexLock lock(mutex_);
  Update(Add(record), record);
}

void Recorder::Update(Entry& entry, const OperationRecord& record) {
  entry.state = record.State();
  entry.submitted_ns = record.submitted_ns;
  entry.started_ns = record.started_ns;
  entry.ready_ns = record.ready_ns;
  entry.released_ns = record.released_ns;
  if (entry.state == OperationState::kReady || entry.state == OperationState::kReleased) {
    entry.waiting_for.clear();
  }
}

void Recorder::SkipRunning() {
  for (size_t i = 0; i < capacity_ && ring_[next_].state == OperationState::kRunning; ++i) {
    next_ = (next_ + 1) % capacity_;
  }
}

void Recorder::RecordWait(const OperationRecord& record, std::string waiting_for) {
  const MutexLock lock(mutex_);
  if (Entry* entry = Find(record)) entry->waiting_for = std::move(waiting_for);
}

std::vector<const Recorder::Entry*> Recorder::EntriesByAge() const {
  std::vector<const Entry*> entries;
  for (size_t i = 0; i < ring_.size(); ++i)
    entries.push_back(&ring_[ring_.size() < capacity_ ? i : (next_ + i) % capacity_]);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry* a, const Entry* b) { return a->submitted_ns < b->submitted_ns; });
  return entries;
}

std::string Recorder::Json() const {
  const MutexLock lock(mutex_);
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const Entry* entry : EntriesByAge()) {
    operations.push_back({{"lane", entry->lane_name},
                          {"lane_index", entry->lane},
                          {"sequence", entry->descriptor.sequence},
                          {"generation", entry->descriptor.generation},
                          {"kind", Name(entry->descriptor.kind)},
                          {"label", entry->label},
                          {"dtype", Name(entry->descriptor.dtype)},
                          {"bytes", entry->bytes},
                          {"description", entry->Description()},
                          {"counts_hash", entry->descriptor.counts_hash},
                          {"state", Name(entry->state)},
                          {"submitted_ns", entry->submitted_ns},
                          {"started_ns", entry->started_ns},
                          {"ready_ns", entry->ready_ns},
                          {"released_ns", entry->released_ns},
                          {"waiting_for", entry->waiting_for},
                          {"waits_for", RanksNamedIn(entry->waiting_for, ranks_).awaited}});
  }
  nlohmann::ordered_json lanes = nlohmann::ordered_json::array();
  for (const auto& [index, lane] : lanes_) {
    lanes.push_back(
        {{"lane", lane.name}, {"lane_index", index}, {"ranks", lane.ranks}, {"submitted", lane.submitted}});
  }
  const std::string failure(failure_.message());
  const NamedRanks named = RanksNamedIn(failure, ranks_);
  // Labels may hold any bytes. Invalid UTF-8 must not throw.
  return nlohmann::ordered_json{{"format", 2},
                                {"rank", rank_},
                                {"ranks", ranks_},
                                {"generation", generation_},
                                {"phase", phase_},
                                {"failure", failure},
                                {"silent", named.silent},
                                {"late", named.late},
                                {"waits_for", named.awaited},
                                {"lanes", std::move(lanes)},
                                {"operations", std::move(operations)}}
      .dump(1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<Recorder::StuckOperation> Recorder::OldestRunning() const {
  const MutexLock lock(mutex_);
  const Entry* oldest = nullptr;
  for (const Entry& entry : ring_) {
    if (entry.state != OperationState::kRunning) continue;
    if (oldest == nullptr || entry.started_ns < oldest->started_ns) oldest = &entry;
  }
  if (oldest == nullptr) return std::nullopt;
  return StuckOperation{oldest->started_ns, "lane " + std::string(oldest->lane_name) + ": " +
                                                oldest->Description() + " " + oldest->waiting_for};
}

}  // namespace weft
