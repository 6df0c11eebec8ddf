// The ranks of a test that runs under mpirun.
#pragma once

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// This process' rank. Made once, before the first test, by the main of MPI tests.
Bootstrap& WorldBootstrap();

}  // namespace weft::testing
