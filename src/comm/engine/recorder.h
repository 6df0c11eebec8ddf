// Flight recorder: a ring of the last operations, including those that still run, for post-mortem analysis.
//
// Lifetime: names of lanes must outlive all calls.
// Thread safety: all members may be called from any thread. None calls MPI or takes the core's lock, so
// that the watchdog can read the recorder while the engine is stuck.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <absl/status/status.h>

#include "src/comm/base/operation_record.h"
#include "weft/core/mutex.h"

namespace weft {

class Recorder {
 public:
  Recorder(int rank, int ranks, int entries)
      : rank_(rank), ranks_(ranks), capacity_(static_cast<size_t>(entries)) {}

  // Records a lane by its index, with the bootstrap ranks of its group.
  void RecordLane(int lane, std::string name, std::vector<int> ranks) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records what the program does, such as "step 12" or "export".
  void SetPhase(std::string phase) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records the failure of the engine.
  void RecordFailure(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the failure. `generation`: of the operations that follow, whose sequences restart on every lane.
  void RecordReset(uint32_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  // The failure of the engine, or OK.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Grows with each failure and each reset.
  int64_t failure_number() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Records the operation's current state. A later call for the same lane and sequence replaces the entry.
  void Record(const OperationRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for an operation that has no entry, without a search for one.
  void RecordNew(const OperationRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records what a running operation waits for, such as "waits for rank(s) 2, 3".
  void RecordWait(const OperationRecord& record, std::string waiting_for) ABSL_LOCKS_EXCLUDED(mutex_);

  // {"format": 2, "rank", "ranks", "generation", "phase", "failure", "silent", "late", "waits_for",
  //  "lanes": [{lane, lane_index, ranks, submitted}],
  //  "operations": [{lane, lane_index, sequence, generation, kind, label, dtype, bytes, description,
  //                  counts_hash, state, …_ns, waiting_for, waits_for}]}
  // "silent", "late" and "waits_for" are the ranks that the texts `failure` and `waiting_for` name.
  // `submitted` is the last sequence on the lane in the record's generation. A failed operation with a start
  // and no end was running.
  std::string Json() const ABSL_LOCKS_EXCLUDED(mutex_);

  struct StuckOperation {
    int64_t started_ns;
    std::string text;  // Describes the operation and what it waits for.
  };
  // The running operation with the earliest start.
  std::optional<StuckOperation> OldestRunning() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    int lane;
    std::string_view lane_name;
    std::string label;
    int64_t bytes;
    OperationState state;
    int64_t submitted_ns, started_ns, ready_ns, released_ns;
    Descriptor descriptor;
    std::string message;  // Describes a message. Empty for a collective.
    std::string waiting_for;

    std::string Description() const { return message.empty() ? ToString(descriptor) : message; }
  };
  struct Lane {
    std::string name;
    std::vector<int> ranks;
    uint64_t submitted = 0;
  };
  Entry* Find(const OperationRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the entry of an operation, in place of an old one if the ring is full.
  Entry& Add(const OperationRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Update(Entry& entry, const OperationRecord& record);
  // Moves next_ past entries of running operations, unless all are running: the watchdog must still find
  // them.
  void SkipRunning() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the order of submission. The ring has another one where entries of running operations stayed.
  std::vector<const Entry*> EntriesByAge() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  const int ranks_;
  const size_t capacity_;
  mutable Mutex mutex_;
  std::map<int, Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  std::string phase_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  int64_t failure_number_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Entry> ring_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft
