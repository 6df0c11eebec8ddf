// NodeLink of simulated ranks: the flags of a peer are seen late.
//
// Note [Late flags]
// What a rank stores becomes visible to each peer of its node after a delay of its own, but in the order of
// the stores: an acquire load that sees a release store sees all stores before it. Nothing else is promised
// by the memory model, and nothing else may be relied on.
#pragma once

#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/comm/links/node_link.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// Collective: all ranks of the bootstrap, which must be simulated.
// Lifetime: heap and bootstrap must outlive the link.
absl::StatusOr<std::unique_ptr<NodeLink>> MakeSimNodeLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                          absl::Duration timeout);

}  // namespace weft
