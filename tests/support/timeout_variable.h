// WEFT_TIMEOUT_S of the environment, for a scope.
//
// Thread safety: none; no other thread may read the environment in this scope.
#pragma once

#include <cstdlib>

namespace weft::testing {

class TimeoutVariable {
 public:
  // Null unsets it.
  explicit TimeoutVariable(const char* value) {
    value == nullptr ? unsetenv("WEFT_TIMEOUT_S") : setenv("WEFT_TIMEOUT_S", value, /*replace=*/1);
  }
  ~TimeoutVariable() { unsetenv("WEFT_TIMEOUT_S"); }
  TimeoutVariable(const TimeoutVariable&) = delete;
  TimeoutVariable& operator=(const TimeoutVariable&) = delete;
};

}  // namespace weft::testing
