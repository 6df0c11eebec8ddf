// Waits that notice the signals of Python's main thread.
#pragma once

#include <chrono>

#include "python/interface/group_collectives.h"

namespace weft::python {

// Waits for the operation without the interpreter's lock. If this is Python's main thread, raises the
// exception of a signal handler, such as KeyboardInterrupt, about every 50 ms; the operation then continues.
// May be called with or without the interpreter's lock.
Outcome WaitForSignalsToo(Operation& operation, std::chrono::milliseconds timeout);

}  // namespace weft::python
