// Test bodies of point-to-point messages, for ranks of any kind.
#pragma once

#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "tests/comm/support/engine_fixture.h"

namespace weft::testing {

// Byte `i` of a message from rank `from` to rank `to`.
std::byte MessageByte(int from, int to, int tag, int64_t i);
void FillMessage(int from, int to, int tag, std::byte* data, int64_t bytes);
// Errors: kDataLoss (names the message and the byte).
absl::Status CheckMessage(int from, int to, int tag, const std::byte* data, int64_t bytes);

// Every rank sends to every rank, itself included, from and to memory of both kinds: receives first, sends
// first, and from any source.
absl::Status SweepMessages(EngineFixture& fixture, const std::vector<int64_t>& sizes);

}  // namespace weft::testing
