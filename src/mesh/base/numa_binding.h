// The NUMA node to which this process is bound.
#pragma once

#include <optional>

namespace weft::internal {

// `given`, or else the NUMA node of the calling thread's affinity; NodeMap::kNotBound if there are several.
int NumaNodeOrBinding(std::optional<int> given);

}  // namespace weft::internal
