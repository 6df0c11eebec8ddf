// NodeLink over memory that a node's ranks really share: processes with MPI windows, or threads of one
// process.
#pragma once

#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/comm/links/node_link.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// Collective: all ranks of the bootstrap (they tell each other where their flags lie).
// Lifetime: the heap must outlive the link.
absl::StatusOr<std::unique_ptr<NodeLink>> MakeSharedMemoryLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                               absl::Duration timeout);

}  // namespace weft
