#include "src/mesh/base/numa_binding.h"

#include "weft/core/topology.h"
#include "weft/mesh/bootstrap.h"

namespace weft::internal {

int NumaNodeOrBinding(std::optional<int> given) {
  return given.has_value() ? *given : BoundNumaNode().value_or(NodeMap::kNotBound);
}

}  // namespace weft::internal
