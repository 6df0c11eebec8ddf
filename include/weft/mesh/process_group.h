// An ordered set of ranks that communicate in collectives. Pure data: making one does not communicate.
#pragma once

#include <string>
#include <vector>

namespace weft {

struct ProcessGroup {
  std::string name;        // "shard", "replicate", …; appears in messages and in the names of lanes.
  std::vector<int> ranks;  // Bootstrap ranks in group order, without duplicates.
  int group_rank = 0;      // The caller's index in `ranks`.

  int size() const { return static_cast<int>(ranks.size()); }
};

}  // namespace weft
