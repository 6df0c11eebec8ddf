// The argument checks that every link between ranks makes alike.
#pragma once

#include <cstddef>

#include <absl/status/status.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

// Errors: kInvalidArgument (names the peer or the tag, and the range).
absl::Status CheckEnvelope(int peer, int ranks, int tag, int max_tag);
// Errors: kInvalidArgument (names the size and the most that fits).
absl::Status CheckNote(int peer, int ranks, size_t bytes);
// The outcome of a receive of `expected` bytes that met a message of `sent`. Errors: kInternal (names both).
absl::Status CheckLength(size_t expected, WireLink::Length length, size_t sent);

}  // namespace weft::internal
