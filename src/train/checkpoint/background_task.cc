#include "src/train/checkpoint/background_task.h"

#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include <absl/base/thread_annotations.h>
#include <absl/strings/str_cat.h>

#include "weft/core/mutex.h"
#include "weft/core/thread.h"

namespace weft {

struct BackgroundTask::Shared {
  Mutex mutex;
  std::condition_variable_any ended;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::Status result ABSL_GUARDED_BY(mutex);
};

BackgroundTask::BackgroundTask(std::function<absl::Status()> task, absl::Duration last_wait)
    : shared_(std::make_shared<Shared>()), last_wait_(last_wait) {
  auto run = [shared = shared_, task = std::move(task)]() mutable {
    absl::Status result = task();
    task = nullptr;  // Frees the captured objects before `done` becomes visible.
    {
      const MutexLock lock(shared->mutex);
      shared->result = std::move(result);
      shared->done = true;
    }
    shared->ended.notify_all();
  };
  absl::StatusOr<std::thread> thread = StartThread("saving a checkpoint", std::move(run));
  has_started_ = thread.ok();
  if (has_started_) {
    thread->detach();
    return;
  }
  const MutexLock lock(shared_->mutex);
  shared_->result = thread.status();
  shared_->done = true;
}

BackgroundTask::~BackgroundTask() { Wait(last_wait_).IgnoreError(); }

bool BackgroundTask::done() const {
  const MutexLock lock(shared_->mutex);
  return shared_->done;
}

absl::Status BackgroundTask::Wait(absl::Duration timeout) const {
  Shared& shared = *shared_;
  const auto is_done = [&shared]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) { return shared.done; };
  const MutexLock lock(shared.mutex);
  if (shared.ended.wait_for(shared.mutex, absl::ToChronoNanoseconds(timeout), is_done)) return shared.result;
  return absl::DeadlineExceededError(
      absl::StrCat("the device has not answered within ", absl::FormatDuration(timeout)));
}

}  // namespace weft
