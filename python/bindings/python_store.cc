#include "python/bindings/python_store.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace nb = nanobind;

namespace weft::python {

PythonStore::~PythonStore() {
  if (!nb::is_alive()) {
    store_.release();
    return;
  }
  const nb::gil_scoped_acquire locked;
  store_.reset();
  pending_ = nullptr;
}

template <typename Call>
absl::Status PythonStore::Try(const Call& call) {
  const nb::gil_scoped_acquire locked;
  try {
    call();
    return absl::OkStatus();
  } catch (const nb::python_error& error) {
    pending_ = std::current_exception();
    return absl::CancelledError(absl::StrCat("the key-value store raised ", error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat("the key-value store returned an unexpected value: ", error.what()));
  }
}

void PythonStore::RethrowPending() {
  if (pending_ != nullptr) std::rethrow_exception(std::exchange(pending_, nullptr));
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

}  // namespace weft::python
