#include "src/comm/base/trace_log.h"

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

void TraceLog::Start() {
  const MutexLock lock(mutex_);
  trace_ = {};
  on_.store(true, std::memory_order_relaxed);
}

EngineTrace TraceLog::Stop() {
  const MutexLock lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  return std::exchange(trace_, {});
}

void TraceLog::SetLaneName(int lane, std::string name) {
  const MutexLock lock(mutex_);
  lane_names_[lane] = std::move(name);
}

void TraceLog::AddOperation(const OperationRecord& record) {
  if (!is_on()) return;
  const MutexLock lock(mutex_);
  trace_.operations.push_back({std::string(record.lane_name), record.descriptor.sequence,
                               record.descriptor.kind, record.label, record.descriptor.dtype,
                               record.logical_bytes, record.priority, record.submitted_ns, record.started_ns,
                               record.ready_ns, record.released_ns});
}

void TraceLog::AddSlice(int lane, TracedSlice slice) {
  if (!is_on() || slice.begin_ns < 0) return;
  slice.end_ns = runtime_.NowNs();
  const MutexLock lock(mutex_);
  const auto name = lane_names_.find(lane);
  slice.lane = name == lane_names_.end() ? "messages" : name->second;
  trace_.slices.push_back(std::move(slice));
}

void TraceLog::AddWait(const OperationRecord* record, int64_t begin_ns, int64_t end_ns) {
  if (!is_on()) return;
  std::string operation;
  if (record != nullptr) {
    operation = absl::StrCat(ToAbsl(Name(record->descriptor.kind)), " '", record->label, "' on ",
                             ToAbsl(record->lane_name));
  }
  const MutexLock lock(mutex_);
  trace_.waits.push_back({std::move(operation), begin_ns, end_ns});
}

}  // namespace weft
