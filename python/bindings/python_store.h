// KeyValueStores whose waits end with an exception of Python, such as KeyboardInterrupt.
//
// Thread safety: any thread may call any member, with or without the lock of the interpreter.
#pragma once

#include <exception>
#include <memory>
#include <nanobind/nanobind.h>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/mesh/key_value_store.h"

namespace weft::python {

class InterruptibleStore : public KeyValueStore {
 public:
  ~InterruptibleStore() override;

  // Raises the Python exception that ended a call, if one did since the last RethrowPending.
  // REQUIRES: the interpreter's lock.
  void RethrowPending();

 protected:
  // REQUIRES: the interpreter's lock, inside of a handler of the exception.
  void KeepPending() { pending_ = std::current_exception(); }

 private:
  std::exception_ptr pending_;  // Guarded by the interpreter's lock.
};

// Raises what RethrowPending of `store` raises, if it is an InterruptibleStore.
void RethrowPendingOf(KeyValueStore& store);

// A Python object, such as weft.torch's adapter of a c10d store. It has the methods set(key, value),
// get_all(keys, timeout_s), which returns a list of bytes or None, and delete(key). It checks signals itself.
class PythonStore final : public InterruptibleStore {
 public:
  explicit PythonStore(nanobind::object store) : store_(std::move(store)) {}
  ~PythonStore() override;

  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override;
  absl::Status Delete(std::string_view key) override;
  absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(absl::Span<const std::string> keys,
                                                                 absl::Duration timeout) override;

 private:
  template <typename Call>
  absl::Status Try(const Call& call);

  nanobind::object store_;
};

// Another store, whose waits check signals about every 50 ms.
class SignalCheckedStore final : public InterruptibleStore {
 public:
  explicit SignalCheckedStore(std::shared_ptr<KeyValueStore> store) : store_(std::move(store)) {}

  absl::Status Set(std::string_view key, std::string_view value) override { return store_->Set(key, value); }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override;
  absl::Status Delete(std::string_view key) override { return store_->Delete(key); }

 private:
  const std::shared_ptr<KeyValueStore> store_;
};

}  // namespace weft::python
