#include "python/c10d/signals.h"

#include <unistd.h>

#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>

namespace weft::python {
namespace {

// Python's main thread is that of the process, unless a program embeds Python in another thread. The latter
// sees signals when the wait ends.
bool IsMainThread() { return syscall(SYS_gettid) == getpid(); }

}  // namespace

struct WithoutInterpreterLock::Released {
  pybind11::gil_scoped_release scope;
};

WithoutInterpreterLock::WithoutInterpreterLock() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released_ = std::make_unique<Released>();
}

WithoutInterpreterLock::~WithoutInterpreterLock() = default;

void RaisePendingSignals() {
  if (!IsMainThread() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

Outcome WaitForSignalsToo(Operation& operation, std::chrono::milliseconds timeout) {
  const WithoutInterpreterLock unlocked;
  return operation.Wait(timeout, RaisePendingSignals);
}

}  // namespace weft::python
