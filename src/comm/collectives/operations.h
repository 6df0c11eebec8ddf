// Factories of the collective algorithms. Each algorithm is a file that exports only its factory.
#pragma once

#include <memory>

#include "src/comm/collectives/collective.h"

namespace weft {

// All kinds of all-gather, barrier, and the broadcast of a group on one node.
std::unique_ptr<Operation> MakeAllGather(const GroupPlacement& placement, CollectivePlan plan);
// REQUIRES: the group spans nodes.
std::unique_ptr<Operation> MakeBroadcast(const GroupPlacement& placement, CollectivePlan plan);
std::unique_ptr<Operation> MakeReduceScatter(const GroupPlacement& placement, CollectivePlan plan);
std::unique_ptr<Operation> MakeAllReduce(const GroupPlacement& placement, CollectivePlan plan);
// Reduce-scatter or all-reduce. REQUIRES: the group is on one node.
std::unique_ptr<Operation> MakeNodeReduce(const GroupPlacement& placement, CollectivePlan plan);
// All-to-all and send-receive.
std::unique_ptr<Operation> MakeAllToAll(CollectivePlan plan);

}  // namespace weft
