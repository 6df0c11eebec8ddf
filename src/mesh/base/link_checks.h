// Argument and length checks that all WireLink implementations share.
#pragma once

#include <cstddef>

#include <absl/status/status.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

// Errors: kInvalidArgument (names the peer or the tag, and its range).
absl::Status CheckEnvelope(int peer, int ranks, int tag, int max_tag);
// Errors: kInvalidArgument (names the peer or the size, and its limit).
absl::Status CheckControlMessage(int peer, int ranks, size_t bytes);
// Outcome of a receive of `expected` bytes that matched a message of `sent` bytes.
// Errors: kInternal (names both lengths).
absl::Status CheckLength(size_t expected, WireLink::Length length, size_t sent);

}  // namespace weft::internal
