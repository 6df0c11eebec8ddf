// The deadline of waits that a test expects to end.
#pragma once

#include <absl/time/time.h>

namespace weft::testing {

// Longer than a machine with much other work may leave a thread without a core.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(120);

}  // namespace weft::testing
