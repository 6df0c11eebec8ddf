#include "python/bindings/errors.h"

#include <nanobind/nanobind.h>
#include <string>

namespace nb = nanobind;

namespace weft::python {
void Raise(const absl::Status& status) {
  const std::string message(status.message());
  PyObject* type = PyExc_RuntimeError;
  if (absl::IsInvalidArgument(status)) type = PyExc_ValueError;
  if (absl::IsDeadlineExceeded(status)) type = PyExc_TimeoutError;
  if (absl::IsResourceExhausted(status)) type = PyExc_MemoryError;
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

Outcome WaitForSignalsToo(Operation& operation, std::chrono::milliseconds timeout) {
  const nb::gil_scoped_release released;
  return operation.Wait(timeout, [] {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
}

}  // namespace weft::python
