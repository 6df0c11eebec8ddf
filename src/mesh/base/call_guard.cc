#include "src/mesh/base/call_guard.h"

#include <pthread.h>

#include <csignal>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"
#include "weft/core/thread.h"

namespace weft::internal {
absl::StatusOr<std::unique_ptr<CallGuard>> CallGuard::Start(std::function<void(const std::string&)> end) {
  std::unique_ptr<CallGuard> guard(new CallGuard(std::move(end)));
  sigset_t all;
  sigset_t previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);  // The thread inherits it.
  absl::StatusOr<std::thread> thread =
      StartThread("the deadlines of MPI", [self = guard.get()] { self->Run(); });
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  WEFT_ASSIGN_OR_RETURN(guard->thread_, std::move(thread));
  return guard;
}

CallGuard::~CallGuard() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

CallGuard::Scope CallGuard::Enter(std::string call, absl::Duration timeout, std::string remedy) {
  {
    const MutexLock lock(mutex_);
    WEFT_CHECK(!call_, "two guarded calls at the same time");
    call_ = Call{std::move(call), timeout, std::move(remedy), DeadlineAfter(timeout)};
  }
  changed_.notify_all();
  return Scope(this);
}

void CallGuard::Leave() {
  {
    const MutexLock lock(mutex_);
    call_.reset();
  }
  changed_.notify_all();
}

void CallGuard::Run() {
  if (const std::optional<std::string> late = NextLateCall()) end_(*late);
}

std::optional<std::string> CallGuard::NextLateCall() {
  const MutexLock lock(mutex_);
  while (!stop_) {
    if (!call_) {
      changed_.wait(mutex_);
    } else if (std::chrono::steady_clock::now() < call_->deadline) {
      const auto deadline = call_->deadline;  // A copy: the call may end during the wait.
      changed_.wait_until(mutex_, deadline);
    } else {
      return absl::StrCat(call_->name, " has not finished within ", TimeoutText(call_->timeout),
                          ": another rank has not started, has ended or is stopped; ", call_->remedy);
    }
  }
  return std::nullopt;
}

}  // namespace weft::internal
