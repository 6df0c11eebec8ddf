// Task in a thread of its own. All waits for it have deadlines, in the destructor too, because a device may
// never answer.
//
// Thread safety: one thread constructs, calls and destroys it.
#pragma once

#include <functional>
#include <memory>

#include <absl/status/status.h>
#include <absl/time/time.h>

namespace weft {

class BackgroundTask {
 public:
  // A device that has not answered for so long may never answer.
  static constexpr absl::Duration kLastWait = absl::Seconds(5);

  // Starts `task`. If the system gives the process no thread, the task is done, with this error: callers
  // agree on the results of tasks anyway.
  // Lifetime: what the task uses must live until it has ended; it may outlive this object.
  explicit BackgroundTask(std::function<absl::Status()> task, absl::Duration last_wait = kLastWait);
  // Waits for the end of the task, but no longer than `last_wait`.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // False if the system has given the process no thread.
  bool has_started() const { return has_started_; }
  bool done() const;
  // The result of the task. Errors: the task's, kResourceExhausted (no thread; names the limits),
  //   kDeadlineExceeded.
  absl::Status Wait(absl::Duration timeout) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // Shared with the thread.
  const absl::Duration last_wait_;
  bool has_started_ = false;
};

}  // namespace weft
