// A clock that a test sets.
#pragma once

#include <cstdint>

#include "tests/support/forwarding_runtime.h"
#include "weft/mesh/runtime.h"

namespace weft::testing {

class SetClock final : public ForwardingRuntime {
 public:
  SetClock() : ForwardingRuntime(system_) {}
  int64_t NowNs() const override { return now_ns; }

  int64_t now_ns = 1;

 private:
  SystemRuntime system_;
};

}  // namespace weft::testing
