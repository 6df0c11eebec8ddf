#include "python/bindings/python_store.h"

#include <algorithm>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace nb = nanobind;

namespace weft::python {

InterruptibleStore::~InterruptibleStore() {
  if (pending_ == nullptr) return;
  if (!nb::is_alive()) {
    static_cast<void>(
        new std::exception_ptr(std::move(pending_)));  // The exception cannot be freed any more.
    return;
  }
  const nb::gil_scoped_acquire locked;
  pending_ = nullptr;
}

void InterruptibleStore::RethrowPending() {
  if (pending_ != nullptr) std::rethrow_exception(std::exchange(pending_, nullptr));
}

void RethrowPendingOf(KeyValueStore& store) {
  if (auto* const interruptible = dynamic_cast<InterruptibleStore*>(&store)) interruptible->RethrowPending();
}

PythonStore::~PythonStore() {
  if (!nb::is_alive()) {
    store_.release();
    return;
  }
  const nb::gil_scoped_acquire locked;
  store_.reset();
}

template <typename Call>
absl::Status PythonStore::Try(const Call& call) {
  const nb::gil_scoped_acquire locked;
  try {
    call();
    return absl::OkStatus();
  } catch (const nb::python_error& error) {
    KeepPending();
    return absl::CancelledError(absl::StrCat("the key-value store raised ", error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat("the key-value store returned an unexpected value: ", error.what()));
  }
}

absl::Status PythonStore::Set(std::string_view key, std::string_view value) {
  return Try(
      [&] { store_.attr("set")(nb::str(key.data(), key.size()), nb::bytes(value.data(), value.size())); });
}

absl::Status PythonStore::Delete(std::string_view key) {
  return Try([&] { store_.attr("delete")(nb::str(key.data(), key.size())); });
}

absl::StatusOr<std::string> PythonStore::Get(std::string_view key, absl::Duration timeout) {
  WEFT_ASSIGN_OR_RETURN(auto values, GetAll({std::string(key)}, timeout));
  if (!values.front())
    return absl::DeadlineExceededError(absl::StrCat("key '", std::string(key), "' is not set"));
  return *std::move(values.front());
}

absl::StatusOr<std::vector<std::optional<std::string>>> PythonStore::GetAll(
    absl::Span<const std::string> keys, absl::Duration timeout) {
  std::vector<std::optional<std::string>> values;
  WEFT_RETURN_IF_ERROR(Try([&] {
    nb::list names;
    for (const std::string& key : keys) names.append(nb::str(key.data(), key.size()));
    const nb::object found = store_.attr("get_all")(names, std::max(0.0, absl::ToDoubleSeconds(timeout)));
    for (const nb::handle value : found) {
      if (value.is_none()) {
        values.emplace_back();
      } else {
        const auto bytes = nb::cast<nb::bytes>(value);
        values.emplace_back(std::string(bytes.c_str(), bytes.size()));
      }
    }
  }));
  if (values.size() != keys.size()) {
    return absl::InternalError(
        absl::StrCat("the key-value store returned ", values.size(), " values for ", keys.size(), " keys"));
  }
  return values;
}

absl::StatusOr<std::string> SignalCheckedStore::Get(std::string_view key, absl::Duration timeout) {
  constexpr absl::Duration kSlice = absl::Milliseconds(50);
  const SystemRuntime runtime;
  const Deadline deadline(runtime, timeout);
  while (true) {
    const absl::Duration left = deadline.Left();
    absl::StatusOr<std::string> value = store_->Get(key, std::min(left, kSlice));
    if (!absl::IsDeadlineExceeded(value.status()) || left <= kSlice) return value;
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() == 0) continue;
    try {
      throw nb::python_error();
    } catch (const nb::python_error& error) {
      KeepPending();
      return absl::CancelledError(absl::StrCat("a signal handler raised ", error.what()));
    }
  }
}

}  // namespace weft::python
