// NodeLink of simulated ranks. It delays the visibility of flags.
//
// Note [Late flags]
// Problem: a protocol may rely on more than the memory model promises, and still pass on real hardware.
// Rule: each store of a rank becomes visible to each local peer after a random delay, but in the order of the
// stores.
// Why it suffices: the memory model promises that an acquire load which sees a release store also sees all
// stores before it, and nothing else. Claims and heartbeats are visible at once, as nothing depends on their
// delay. A full count (Note [Arrivals]) becomes visible late, too. Each rank that counted itself has read the
// counts before, so a rank that sees the full count sees all stores of all ranks before it.
#pragma once

#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/comm/links/node_link.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// Collective: all ranks of the bootstrap, which must be simulated.
// Lifetime: heap and bootstrap must outlive the link. The link must outlive the next exchange of all ranks:
// until then, peers take shares of its state.
absl::StatusOr<std::unique_ptr<NodeLink>> MakeSimNodeLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                          absl::Duration timeout);

}  // namespace weft
