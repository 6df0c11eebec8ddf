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
  // A message may name a file whose name is not UTF-8.
  PyObject* text =
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace");
  if (text != nullptr) PyErr_SetObject(type, text);
  Py_XDECREF(text);
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
