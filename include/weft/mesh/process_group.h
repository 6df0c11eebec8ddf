// An ordered set of ranks that take part in a collective together. Pure data: nothing is created or sent.
#pragma once

#include <string>
#include <vector>

namespace weft {

struct ProcessGroup {
  std::string name;        // "shard", "replicate", …: for messages and for numbering lanes.
  std::vector<int> ranks;  // Bootstrap ranks, in group order, without repetition.
  int group_rank = 0;      // The caller's place in `ranks`.

  int size() const { return static_cast<int>(ranks.size()); }
};

}  // namespace weft
