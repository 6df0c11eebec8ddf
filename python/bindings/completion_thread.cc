#include "python/bindings/completion_thread.h"

#include <algorithm>
#include <utility>

namespace weft::python {
namespace {

using Clock = std::chrono::steady_clock;

// Waits until the operation is done, or until the deadline.
Outcome AwaitDone(CompletionThread::Entry& entry) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(entry.deadline - Clock::now());
  return entry.operation->Wait(std::max(left, std::chrono::milliseconds(0)));
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
  auto ticket = std::make_shared<Entry>(std::move(entry));
  const std::lock_guard lock(mutex_);
  entries_.push_back(ticket);
  changed_.notify_all();
  return ticket;
}

void CompletionThread::Notify(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ticket->is_ready = true;
  changed_.notify_all();
}

CompletionThread::Ticket CompletionThread::Next(std::unique_lock<std::mutex>& lock) {
  while (true) {
    const auto now = Clock::now();
    const auto due = std::find_if(entries_.begin(), entries_.end(), [&](const Ticket& ticket) {
      return stops_ || ticket->is_ready || ticket->deadline <= now;
    });
    if (due != entries_.end()) {
      Ticket ticket = *due;
      entries_.erase(due);
      return ticket;
    }
    if (stops_) return nullptr;
    if (entries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto earliest = std::min_element(
        entries_.begin(), entries_.end(),
        [](const Ticket& left, const Ticket& right) { return left->deadline < right->deadline; });
    changed_.wait_until(lock, (*earliest)->deadline);
  }
}

void CompletionThread::Run() {
  std::unique_lock lock(mutex_);
  while (Ticket ticket = Next(lock)) {
    lock.unlock();
    ticket->done(AwaitDone(*ticket));
    ticket.reset();
    lock.lock();
  }
}

}  // namespace weft::python
