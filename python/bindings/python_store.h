// KeyValueStore over a Python object, such as weft.torch's adapter of a c10d store.
//
// The object has the methods set(key, value), get_all(keys, timeout_s), which returns a list of bytes or
// None, and delete(key).
//
// Thread safety: any thread may call any member, with or without the lock of the interpreter.
#pragma once

#include <exception>
#include <nanobind/nanobind.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/mesh/key_value_store.h"

namespace weft::python {

class PythonStore final : public KeyValueStore {
 public:
  explicit PythonStore(nanobind::object store) : store_(std::move(store)) {}
  ~PythonStore() override;

  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override;
  absl::Status Delete(std::string_view key) override;
  absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(absl::Span<const std::string> keys,
                                                                 absl::Duration timeout) override;

  // Raises the exception that a method of the object raised, such as KeyboardInterrupt, if one did since the
  // last call. REQUIRES: the interpreter's lock.
  void RethrowPending();

 private:
  template <typename Call>
  absl::Status Try(const Call& call);

  nanobind::object store_;
  std::exception_ptr pending_;  // Guarded by the interpreter's lock.
};

}  // namespace weft::python
