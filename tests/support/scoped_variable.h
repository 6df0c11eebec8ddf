// An environment variable for a scope, which restores the value of before.
//
// Thread safety: none; no other thread may read the environment in this scope.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace weft::testing {

class ScopedVariable {
 public:
  // Null unsets it.
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    Set(value);
  }
  ~ScopedVariable() { Set(before_ ? before_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void Set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, /*replace=*/1); }

  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace weft::testing
