// Deadline of calls that block and cannot be canceled, such as MPI_Init and MPI_Finalize: a thread ends the
// process if one takes too long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <absl/base/thread_annotations.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/core/mutex.h"

namespace weft::internal {

class CallGuard {
 public:
  // A call in progress. It ends with this object.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(CallGuard* guard) : guard_(guard) {}
    Scope(Scope&& other) noexcept : guard_(std::exchange(other.guard_, nullptr)) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope() {
      if (guard_ != nullptr) guard_->Leave();
    }

   private:
    CallGuard* guard_;  // Null: the call has no deadline.
  };

  // `end` gets a message that names the call, and ends the process; tests replace it. It runs in the guard's
  // thread, which takes no signals: these belong to the threads of the program.
  // Errors: kResourceExhausted (the system gives the process no thread; names the limits).
  static absl::StatusOr<std::unique_ptr<CallGuard>> Start(std::function<void(const std::string&)> end);
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;

  // Starts the deadline of `call`, which the caller makes next. `remedy` completes the message.
  // Lifetime: the guard must outlive the scope.
  // REQUIRES: no other call is in progress.
  Scope Enter(std::string call, absl::Duration timeout, std::string remedy);

 private:
  struct Call {
    std::string name;
    absl::Duration timeout;
    std::string remedy;
    std::chrono::steady_clock::time_point deadline;
  };
  explicit CallGuard(std::function<void(const std::string&)> end) : end_(std::move(end)) {}
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for a call to exceed its deadline, and returns the message. nullopt: the guard stops.
  std::optional<std::string> NextLateCall() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::function<void(const std::string&)> end_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Call> call_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the other members. Set by Start.
};

}  // namespace weft::internal
