// Waits that notice the signals of Python's main thread.
#pragma once

#include <chrono>
#include <memory>

#include "python/interface/group_collectives.h"

namespace weft::python {

// Waits for the operation without the interpreter's lock. If this is Python's main thread, raises the
// exception of a signal handler, such as KeyboardInterrupt, about every 50 ms; the operation then continues.
// May be called with or without the interpreter's lock.
Outcome WaitForSignalsToo(Operation& operation, std::chrono::milliseconds timeout);

// If this is Python's main thread, raises the exception of a signal handler. May be called with or without
// the interpreter's lock.
void RaisePendingSignals();

// Releases the interpreter's lock in its scope, if this thread holds it.
class WithoutInterpreterLock {
 public:
  WithoutInterpreterLock();
  ~WithoutInterpreterLock();
  WithoutInterpreterLock(const WithoutInterpreterLock&) = delete;
  WithoutInterpreterLock& operator=(const WithoutInterpreterLock&) = delete;

 private:
  struct Released;
  std::unique_ptr<Released> released_;
};

}  // namespace weft::python
