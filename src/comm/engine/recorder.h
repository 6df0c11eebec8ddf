// The flight recorder: a ring of the last operations, and of those that still run, for post-mortems.
//
// Thread safety: all members may be called from any thread; none of them calls MPI or takes the engine's
// lock, so the watchdog can read it while the engine is stuck.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/base/operation_record.h"

namespace weft {

class Recorder {
 public:
  Recorder(int rank, int entries) : rank_(rank), capacity_(static_cast<size_t>(entries)) {}

  // Notes the operation as it is now; a later call for the same lane and sequence replaces the entry.
  void Note(const OperationRecord& record);
  // What a running operation waits for: "has not heard from ranks 2, 3".
  void NoteWaiting(const OperationRecord& record, std::string waiting_for);

  // JSON: {"rank": …, "operations": [{lane, sequence, kind, label, dtype, bytes, state, …_ns, waiting_for}]}.
  std::string Json() const;

  struct Stuck {
    int64_t started_ns;
    std::string text;  // The operation, and what it waits for.
  };
  // The running operation that started first.
  std::optional<Stuck> OldestRunning() const;

 private:
  struct Entry {
    int lane;
    uint64_t sequence;
    uint32_t generation;
    std::string lane_name;
    OpKind kind;
    std::string label;
    DType dtype;
    int64_t bytes;
    OperationState state;
    int64_t submitted_ns, started_ns, ready_ns, released_ns;
    std::string description;
    std::string waiting_for;
  };
  Entry* Find(const OperationRecord& record);
  // The watchdog must not lose sight of what is stuck: an operation that runs keeps its entry, unless all do.
  void SkipRunning();

  const int rank_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  size_t next_ = 0;
};

}  // namespace weft
