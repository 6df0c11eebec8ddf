// An ordered set of ranks that communicate in collectives. Pure data: making one does not communicate.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <vector>

#include <absl/types/span.h>

namespace weft {

struct ProcessGroup {
  std::string name;        // "shard", "replicate", …; appears in messages and in the names of lanes.
  std::vector<int> ranks;  // Bootstrap ranks in group order, without duplicates.
  int group_rank = 0;      // The caller's index in `ranks`.

  int size() const { return static_cast<int>(ranks.size()); }
};

// Ranks in messages: "rank 3", "ranks 0, 1, 2". Lists eight of many: "ranks 0, 1, 2, …, 7 and 12 others".
std::string RankList(absl::Span<const int> ranks);

}  // namespace weft
