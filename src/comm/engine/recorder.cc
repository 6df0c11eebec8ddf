#include "src/comm/engine/recorder.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace weft {

Recorder::Entry* Recorder::Find(const OperationRecord& record) {
  // Newest first: most calls are for a recent operation.
  for (size_t back = 1; back <= ring_.size(); ++back) {
    Entry& entry = ring_[(next_ + ring_.size() - back) % ring_.size()];
    if (entry.lane == record.lane && entry.sequence == record.descriptor.sequence &&
        entry.generation == record.descriptor.generation) {
      return &entry;
    }
  }
  return nullptr;
}

void Recorder::Record(const OperationRecord& record) {
  const MutexLock lock(mutex_);
  Entry* entry = record.State() == OperationState::kQueued ? nullptr : Find(record);
  if (entry == nullptr) {
    Entry fresh{record.lane,
                record.descriptor.sequence,
                record.descriptor.generation,
                record.lane_name,
                record.descriptor.kind,
                record.label,
                record.descriptor.dtype,
                record.logical_bytes,
                OperationState::kQueued,
                0,
                0,
                0,
                0,
                ToString(record.descriptor),
                {}};
    if (ring_.size() < capacity_) {
      ring_.push_back(std::move(fresh));
      next_ = ring_.size() % capacity_;
      entry = &ring_.back();
    } else {
      SkipRunning();
      entry = &ring_[next_];
      *entry = std::move(fresh);
      next_ = (next_ + 1) % capacity_;
    }
  }
  entry->state = record.State();
  entry->submitted_ns = record.submitted_ns;
  entry->started_ns = record.started_ns;
  entry->ready_ns = record.ready_ns;
  entry->released_ns = record.released_ns;
  if (entry->state != OperationState::kRunning) entry->waiting_for.clear();
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

std::string Recorder::Json() const {
  const MutexLock lock(mutex_);
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (size_t i = 0; i < ring_.size(); ++i) {
    const Entry& entry = ring_[ring_.size() < capacity_ ? i : (next_ + i) % capacity_];
    operations.push_back({{"lane", entry.lane_name},
                          {"sequence", entry.sequence},
                          {"kind", Name(entry.kind)},
                          {"label", entry.label},
                          {"dtype", Name(entry.dtype)},
                          {"bytes", entry.bytes},
                          {"state", Name(entry.state)},
                          {"submitted_ns", entry.submitted_ns},
                          {"started_ns", entry.started_ns},
                          {"ready_ns", entry.ready_ns},
                          {"released_ns", entry.released_ns},
                          {"waiting_for", entry.waiting_for}});
  }
  return nlohmann::ordered_json{{"rank", rank_}, {"operations", std::move(operations)}}.dump(1);
}

std::optional<Recorder::StuckOperation> Recorder::OldestRunning() const {
  const MutexLock lock(mutex_);
  const Entry* oldest = nullptr;
  for (const Entry& entry : ring_) {
    if (entry.state != OperationState::kRunning) continue;
    if (oldest == nullptr || entry.started_ns < oldest->started_ns) oldest = &entry;
  }
  if (oldest == nullptr) return std::nullopt;
  return StuckOperation{oldest->started_ns,
                        "lane " + oldest->lane_name + ": " + oldest->description + " " + oldest->waiting_for};
}

}  // namespace weft
