#include "python/bindings/errors.h"

#include <algorithm>
#include <nanobind/nanobind.h>
#include <string>

namespace nb = nanobind;

namespace weft::python {
namespace {

constexpr std::chrono::milliseconds kSlice(50);

}  // namespace

void Raise(const absl::Status& status) {
  const std::string message(status.message());
  PyObject* type = PyExc_RuntimeError;
  if (absl::IsInvalidArgument(status)) type = PyExc_ValueError;
  if (absl::IsDeadlineExceeded(status)) type = PyExc_TimeoutError;
  if (absl::IsResourceExhausted(status)) type = PyExc_MemoryError;
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

Outcome WaitForSignalsToo(std::chrono::milliseconds timeout,
                          const std::function<Outcome(std::chrono::milliseconds)>& wait) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    Outcome outcome;
    const auto left =
        std::max(std::chrono::milliseconds(0),
                 std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
    {
      const nb::gil_scoped_release released;
      outcome = wait(std::min(left, kSlice));
    }
    if (outcome.code != Outcome::Code::kTimeout) return outcome;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (left <= kSlice) return outcome;
  }
}

}  // namespace weft::python
