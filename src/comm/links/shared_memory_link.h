// NodeLink over shared memory, for processes with MPI windows and for threads of one process.
#pragma once

#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/comm/links/node_link.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// Collective: all ranks of the bootstrap. They exchange the addresses of their flags.
// Lifetime: the heap must outlive the link.
absl::StatusOr<std::unique_ptr<NodeLink>> MakeSharedMemoryLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                               absl::Duration timeout);

}  // namespace weft
