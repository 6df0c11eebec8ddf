// State that the parts of a CommContext share: the engine, the first failure, and the counters.
//
// Thread safety: none. Lifetime: the engine must outlive it.
#pragma once

#include <utility>

#include <absl/status/status.h>

#include "weft/comm/comm_engine.h"
#include "weft/comm/work.h"
#include "weft/sharding/counters.h"

namespace weft {

class PipelineState {
 public:
  explicit PipelineState(CommEngine& engine) : engine_(engine) {}

  CommEngine& engine() { return engine_; }
  ShardingCounters& counters() { return counters_; }
  void CountCopy(int64_t bytes) { counters_.copied_bytes += bytes; }

  // OK, or the first failure.
  const absl::Status& status() const { return status_; }
  // Records the first failure and fails the engine, so that peers fail too instead of waiting.
  void Stop(const absl::Status& cause);
  // The same. Returns the recorded failure.
  absl::Status Fail(const absl::Status& cause) {
    Stop(cause);
    return status_;
  }
  // After CommEngine::ResetAfterError.
  void ClearFailure() { status_ = absl::OkStatus(); }

  // Waits until a Work or Transfer is ready. Errors: its failure, which is recorded.
  template <typename Pending>
  absl::Status AwaitReady(Pending& pending) {
    const absl::Status ready = pending.Wait(wait_check_);
    return ready.ok() ? ready : Fail(ready);
  }
  // Waits until a Work or Transfer is released. Errors: its failure, which is recorded.
  template <typename Pending>
  absl::Status AwaitRelease(Pending& pending) {
    const absl::Status released = pending.WaitReleased(wait_check_);
    return released.ok() ? released : Fail(released);
  }
  // Called about every 50 ms during these waits for the engine; an error ends the wait and is recorded. Null:
  // no check.
  void SetWaitCheck(Work::WaitCheck check) { wait_check_ = std::move(check); }

 private:
  CommEngine& engine_;
  ShardingCounters counters_;
  absl::Status status_;
  Work::WaitCheck wait_check_;
};

}  // namespace weft
