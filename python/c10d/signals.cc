#include "python/c10d/signals.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>

namespace weft::python {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSlice(50);

// Python's main thread is that of the process, unless a program embeds Python in another thread. The latter
// sees signals when the wait ends.
bool IsMainThread() { return syscall(SYS_gettid) == getpid(); }

void RaisePendingSignals() {
  if (!IsMainThread() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

Outcome WaitSlice(Operation& operation, milliseconds slice) {
  std::optional<pybind11::gil_scoped_release> released;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released.emplace();
  return operation.Wait(slice);
}

}  // namespace

Outcome WaitForSignalsToo(Operation& operation, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left = std::max(milliseconds(0),
                               std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()));
    Outcome outcome = WaitSlice(operation, std::min(left, kSlice));
    if (outcome.code != Outcome::Code::kTimeout) return outcome;
    RaisePendingSignals();
    if (left <= kSlice) return outcome;
  }
}

}  // namespace weft::python
