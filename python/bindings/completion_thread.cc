#include "python/bindings/completion_thread.h"

#include <algorithm>
#include <utility>

#include <absl/time/time.h>

#include "python/bindings/engine_operation.h"

namespace weft::python {
namespace {

using Clock = std::chrono::steady_clock;

// Other operations may wait for as long, although they are done.
constexpr absl::Duration kPollSlice = absl::Milliseconds(1);

// Waits until the operation is done, or until the deadline.
Outcome AwaitDone(CompletionThread::Entry& entry) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(entry.deadline - Clock::now());
  return entry.operation->Wait(std::max(left, std::chrono::milliseconds(0)), nullptr);
}

}  // namespace

CompletionThread::CompletionThread() : thread_([this] { Run(); }) {}

CompletionThread::~CompletionThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

CompletionThread::Ticket CompletionThread::Add(Entry entry) {
  auto ticket = std::make_shared<Readiness>();
  const std::lock_guard lock(mutex_);
  entries_.push_back({std::move(entry), ticket});
  changed_.notify_all();
  return ticket;
}

void CompletionThread::Notify(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ticket->is_ready = true;
  changed_.notify_all();
}

std::optional<CompletionThread::Pending> CompletionThread::Next(std::unique_lock<std::mutex>& lock) {
  while (true) {
    const auto now = Clock::now();
    const auto due = std::find_if(entries_.begin(), entries_.end(), [&](const Pending& pending) {
      return stops_ || pending.entry.deadline <= now ||
             (pending.ticket->is_ready && pending.entry.operation->IsDone());
    });
    if (due != entries_.end()) {
      Pending pending = std::move(*due);
      entries_.erase(due);
      return pending;
    }
    if (stops_) return std::nullopt;
    WaitForChange(lock);
  }
}

void CompletionThread::WaitForChange(std::unique_lock<std::mutex>& lock) {
  if (entries_.empty()) return changed_.wait(lock);
  const auto ready = std::find_if(entries_.begin(), entries_.end(),
                                  [](const Pending& pending) { return pending.ticket->is_ready; });
  if (ready != entries_.end()) {  // It waits for *released*, of which nobody notifies this thread.
    EngineOperation& operation = *ready->entry.operation;  // Only this thread erases entries.
    lock.unlock();
    operation.Poll(kPollSlice);
    lock.lock();
    return;
  }
  const auto earliest = std::min_element(
      entries_.begin(), entries_.end(),
      [](const Pending& left, const Pending& right) { return left.entry.deadline < right.entry.deadline; });
  changed_.wait_until(lock, earliest->entry.deadline);
}

void CompletionThread::Run() {
  std::unique_lock lock(mutex_);
  while (auto pending = Next(lock)) {
    lock.unlock();
    const Outcome outcome = AwaitDone(pending->entry);
    {
      const Session::OwnCall own_call;  // The end of the session joins this thread.
      pending->entry.done(outcome);
    }
    pending.reset();
    lock.lock();
  }
}

}  // namespace weft::python
