// Description of one parameter group by the client of ShardedGroups.
//
// Thread safety: a value.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/nn/parameter.h"

namespace weft {

struct GroupMembers {
  std::string name;
  int parent = -1;  // Number of the group around it, which is lower than its own; -1 for the root group.
  std::vector<std::shared_ptr<Parameter>> parameters;
  // Modules that share the group. Each calls the schedule; together they are one use of the group.
  int modules = 1;
};

}  // namespace weft
