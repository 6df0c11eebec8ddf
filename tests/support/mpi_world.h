// The bootstrap of a test that runs under mpirun.
#pragma once

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Bootstrap of this process. The main program of MPI tests creates it before the first test.
Bootstrap& WorldBootstrap();

}  // namespace weft::testing
