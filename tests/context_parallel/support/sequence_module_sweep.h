// Test body of SplitSequence and GatherSequence. It runs over threads and over MPI.
#pragma once

#include "tests/comm/support/engine_fixture.h"

namespace weft::testing {

// Layouts in order, head-tail and of packed documents, with even and uneven parts, along any dim and with any
// scale. Tensors and gradients are compared with parts of whole tensors, which every rank knows.
absl::Status SweepSequenceModules(EngineFixture& fixture);

}  // namespace weft::testing
