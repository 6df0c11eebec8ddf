// Identity of the node on which this process runs: equal for two processes if they can share memory.
#pragma once

#include <string>

namespace weft::internal {

// The host name, the boot of the kernel and the namespace of process ids, as one line of text. Emulated hosts
// share a kernel, and have different host names.
std::string NodeIdentity();

}  // namespace weft::internal
