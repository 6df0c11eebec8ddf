// Ctrl-C, and the SIGTERM that mpirun sends: a request to stop at the next good moment.
#pragma once

#include <atomic>

namespace weft {

// From now on the first SIGINT or SIGTERM sets the flag that is returned; a second one ends the process as
// usual.
const std::atomic<bool>& WatchStopSignals();

}  // namespace weft
