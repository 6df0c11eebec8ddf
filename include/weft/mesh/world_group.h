// The process group of all ranks, named "world", in rank order. Pure: no communication.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "weft/mesh/bootstrap.h"
#include "weft/mesh/process_group.h"

namespace weft {

inline ProcessGroup WorldGroup(const Bootstrap& bootstrap) {
  ProcessGroup world{"world", std::vector<int>(static_cast<size_t>(bootstrap.size())), bootstrap.rank()};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  return world;
}

}  // namespace weft
