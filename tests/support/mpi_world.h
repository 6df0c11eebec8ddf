// The bootstrap of a test whose ranks are processes.
#pragma once

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

// Bootstrap of this process, over MPI or over a store. The main program of these tests creates it before the
// first test.
Bootstrap& WorldBootstrap();

}  // namespace weft::testing
