// Thread that reports the end of operations to callbacks, which may block.
//
// Callbacks of the engine may not block, and know only that an operation is *ready*. This thread waits for
// *released* and for deadlines, and runs callbacks that take the lock of the Python interpreter. It waits for
// all operations together: a peer that is late for one delays no other.
//
// Thread safety: any thread may call any member.
// Lifetime: the destructor runs all remaining callbacks. REQUIRES: the session has failed or finished their
//   operations, or they pass their deadlines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "python/interface/group_collectives.h"

namespace weft::python {

class EngineOperation;

class CompletionThread {
 public:
  CompletionThread();
  ~CompletionThread();

  struct Entry {
    std::shared_ptr<EngineOperation> operation;
    std::chrono::steady_clock::time_point deadline;
    std::function<void(const Outcome&)> done;
  };
  // State of an entry. It does not hold the operation: a callback of the engine that dropped the last
  // reference would end the operation on the engine's thread, which Session::Close waits for.
  struct Readiness {
    bool is_ready = false;
  };
  using Ticket = std::shared_ptr<Readiness>;

  // Calls `done` once when `operation` is done, or at the deadline. The caller then calls Notify when the
  // operation is *ready* or has failed.
  Ticket Add(Entry entry);
  void Notify(const Ticket& ticket);

 private:
  struct Pending {
    Entry entry;
    Ticket ticket;
  };
  void Run();
  // The next entry that is done or past its deadline. Waits for one; empty at the end.
  std::optional<Pending> Next(std::unique_lock<std::mutex>& lock);
  // Waits until something may have changed.
  void WaitForChange(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Pending> entries_;
  bool stops_ = false;
  std::thread thread_;  // Last: it uses the members above.
};

}  // namespace weft::python
