#include "src/train/checkpoint/background_task.h"

#include <thread>
#include <utility>

#include <absl/base/thread_annotations.h>
#include <absl/strings/str_cat.h>
#include <absl/synchronization/mutex.h>

namespace weft {

struct BackgroundTask::Shared {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::Status result ABSL_GUARDED_BY(mutex);
};

BackgroundTask::BackgroundTask(std::function<absl::Status()> task) : shared_(std::make_shared<Shared>()) {
  std::thread([shared = shared_, task = std::move(task)]() mutable {
    absl::Status result = task();
    task = nullptr;  // Frees what it uses before anybody learns of its end.
    const absl::MutexLock lock(&shared->mutex);
    shared->result = std::move(result);
    shared->done = true;
  }).detach();
}

BackgroundTask::~BackgroundTask() { Wait(absl::Seconds(5)).IgnoreError(); }

bool BackgroundTask::done() const {
  const absl::MutexLock lock(&shared_->mutex);
  return shared_->done;
}

absl::Status BackgroundTask::Wait(absl::Duration timeout) const {
  const absl::MutexLock lock(&shared_->mutex);
  if (shared_->mutex.AwaitWithTimeout(absl::Condition(&shared_->done), timeout)) return shared_->result;
  return absl::DeadlineExceededError(
      absl::StrCat("the device has not answered within ", absl::FormatDuration(timeout)));
}

}  // namespace weft
