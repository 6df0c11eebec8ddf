#include "src/mesh/base/call_guard.h"

#include <pthread.h>

#include <csignal>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// A thread that takes no signals, which belong to the threads of the program.
std::thread StartWithoutSignals(const std::function<void()>& body) {
  sigset_t all;
  sigset_t previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread thread(body);
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  return thread;
}

}  // namespace

CallGuard::CallGuard(std::function<void(const std::string&)> end)
    : end_(std::move(end)), thread_(StartWithoutSignals([this] { Run(); })) {}

CallGuard::~CallGuard() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
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
