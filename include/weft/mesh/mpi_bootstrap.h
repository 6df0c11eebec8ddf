// Bootstrap over MPI: each rank is a process that mpirun started. Without mpirun there is a single rank.
#pragma once

#include <memory>

#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Creates the bootstrap of this process.
//
// If MPI is not initialized, initializes it with MPI_THREAD_MULTIPLE; MPI is then finalized after the
// bootstrap and its links are destroyed. MPI_Comm_split_type(MPI_COMM_TYPE_SHARED) determines the nodes. Node
// memory comes from MPI shared windows. MPI errors are returned as statuses and do not abort.
//
// Collective: all ranks of MPI_COMM_WORLD.
// Lifetime: the destructor waits for the destructors of all ranks. It therefore waits at most until the
// deadlines of all ranks have passed: a failed rank returns from its main function, and its peers fail at
// their deadlines. Links may outlive the bootstrap; node memory may not.
// Errors: kFailedPrecondition (MPI does not provide MPI_THREAD_MULTIPLE), kInternal (has MPI's error
// message).
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap();

}  // namespace weft
