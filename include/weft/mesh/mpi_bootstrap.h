// A rank is a process started by mpirun (or a single process without it).
#pragma once

#include <memory>

#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Initialises MPI with MPI_THREAD_MULTIPLE if nobody has, and finalises it with the bootstrap if so. Nodes
// are what MPI_Comm_split_type(SHARED) says; node memory comes from MPI shared windows; errors return, they
// do not abort.
//
// Destroying it waits for the other ranks to do the same: a rank that failed comes there when its main
// function returns, and its peers when their deadlines have passed. Links may outlive it, memory may not.
//
// Errors: kFailedPrecondition (no MPI_THREAD_MULTIPLE), kInternal (what MPI said).
absl::StatusOr<std::unique_ptr<Bootstrap>> MakeMpiBootstrap();

}  // namespace weft
