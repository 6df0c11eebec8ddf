// One maker for each algorithm: a collective's file gives only this.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "src/comm/collectives/collective.h"
#include "weft/core/status.h"

namespace weft {

std::unique_ptr<Operation> MakeAllGather(const GroupPlacement& placement, CollectivePlan plan);
// Of ranks on several nodes; on one node both are MakeNodeReduce's.
std::unique_ptr<Operation> MakeReduceScatter(const GroupPlacement& placement, CollectivePlan plan);
std::unique_ptr<Operation> MakeAllReduce(const GroupPlacement& placement, CollectivePlan plan);
std::unique_ptr<Operation> MakeNodeReduce(const GroupPlacement& placement, CollectivePlan plan);
std::unique_ptr<Operation> MakeAllToAll(CollectivePlan plan);

}  // namespace weft
