// Free memory for the node memory of processes and of emulated nodes, and the check of reservations.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/mesh/host_memory.h"

namespace weft::internal {

// Storage of the pages of a host's node memory.
struct NodeMemoryPlace {
  const char* file_system = nullptr;  // Such as /dev/shm. Null: no file system limits them.
  size_t files = 0;  // Number of files that hold the segments of the host. 0: they are in none.
};

// Free memory of this host, whose ranks are processes.
absl::StatusOr<FreeMemory> FreeMemoryOfHost(const NodeMemoryPlace& place);
// Free memory of each of `nodes` nodes that this process emulates.
absl::StatusOr<FreeMemory> FreeMemoryOfEmulatedNode(int nodes);

// Checks that each of `ranks` ranks can reserve `segment_bytes`, which take `footprint_bytes`.
// Errors: that of `free_memory`; kResourceExhausted (gives the requested and the free bytes, the resource and
// its remedy).
absl::Status CheckReservation(const absl::StatusOr<FreeMemory>& free_memory, size_t segment_bytes,
                              size_t footprint_bytes, size_t ranks);

}  // namespace weft::internal
