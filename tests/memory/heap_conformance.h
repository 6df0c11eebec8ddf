// What a node heap promises on every bootstrap, as rank bodies.
#pragma once

#include <absl/status/status.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Random allocations of all ranks at once are aligned, keep what is written to them, and are seen by the
// node's ranks.
absl::Status KeepsBlocksApartAndShared(Bootstrap& bootstrap);
// A heap that is full says so, with the numbers, and works again after blocks came back.
absl::Status SaysWhenItIsFull(Bootstrap& bootstrap);
// Without a size, all ranks get the same one, and it is of use.
absl::Status AgreesOnASizeByItself(Bootstrap& bootstrap);
// The smallest size that a rank asks for is everybody's; one that no node has is an error everywhere.
absl::Status AgreesOnTheSizeThatIsAsked(Bootstrap& bootstrap);

}  // namespace weft::testing
