// Statuses as Python exceptions, and waits that notice signals.
#pragma once

#include <chrono>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "python/interface/group_collectives.h"

namespace weft::python {

// Raises ValueError for kInvalidArgument, TimeoutError for kDeadlineExceeded, MemoryError for
// kResourceExhausted, otherwise RuntimeError. REQUIRES: the interpreter's lock, and an error.
[[noreturn]] void Raise(const absl::Status& status);

template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

// Waits for the operation without the interpreter's lock. About every 50 ms, raises the exception of a signal
// handler, such as KeyboardInterrupt. REQUIRES: the interpreter's lock.
Outcome WaitForSignalsToo(Operation& operation, std::chrono::milliseconds timeout);

}  // namespace weft::python
