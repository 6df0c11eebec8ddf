// Thread that reports the end of operations to callbacks, which may block.
//
// Callbacks of the engine may not block, and know only that an operation is *ready*. This thread waits for
// *released* and for deadlines, and runs callbacks that take the lock of the Python interpreter.
//
// Thread safety: any thread may call any member.
// Lifetime: the destructor runs all remaining callbacks. REQUIRES: the session has failed or finished their
//   operations, or they pass their deadlines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "python/interface/group_collectives.h"

namespace weft::python {

class CompletionThread {
 public:
  CompletionThread();
  ~CompletionThread();

  // Calls `done` once when `operation` is done, or at the deadline. The caller then calls Notify when the
  // operation is *ready* or has failed.
  struct Entry {
    std::shared_ptr<Operation> operation;
    std::chrono::steady_clock::time_point deadline;
    std::function<void(const Outcome&)> done;
    bool is_ready = false;
  };
  using Ticket = std::shared_ptr<Entry>;
  Ticket Add(Entry entry);
  void Notify(const Ticket& ticket);

 private:
  void Run();
  // The next entry that is ready or past its deadline. Waits for one; null at the end.
  Ticket Next(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Ticket> entries_;
  bool stops_ = false;
  std::thread thread_;  // Last: it uses the members above.
};

}  // namespace weft::python
