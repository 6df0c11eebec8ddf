// Log of operations, slices and waits while an engine is traced.
//
// Thread safety: all members may be called from any thread. While no trace is recorded, is_on is one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <absl/base/thread_annotations.h>

#include "src/comm/base/operation_record.h"
#include "weft/comm/engine_trace.h"
#include "weft/core/mutex.h"
#include "weft/mesh/runtime.h"

namespace weft {

class TraceLog {
 public:
  // Lifetime: `runtime` must outlive the log.
  explicit TraceLog(const Runtime& runtime) : runtime_(runtime) {}

  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the trace and returns it. Empty if none was started.
  EngineTrace Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // The name of a lane's index, for its slices.
  void SetLaneName(int lane, std::string name) ABSL_LOCKS_EXCLUDED(mutex_);

  // The time at which something begins that is logged when it ends. -1 while no trace is recorded: what began
  // before the trace is not part of it.
  int64_t Begin() const { return is_on() ? runtime_.NowNs() : -1; }
  // Each logs nothing while no trace is recorded.
  void AddOperation(const OperationRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // `slice` without its lane's name and its end. Not logged if it began before the trace.
  void AddSlice(int lane, TracedSlice slice) ABSL_LOCKS_EXCLUDED(mutex_);
  // `record` is null for a wait for all operations.
  void AddWait(const OperationRecord* record, int64_t begin_ns, int64_t end_ns) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const Runtime& runtime_;
  std::atomic<bool> on_{false};
  Mutex mutex_;
  std::map<int, std::string> lane_names_ ABSL_GUARDED_BY(mutex_);
  EngineTrace trace_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft
