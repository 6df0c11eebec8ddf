// Factories of the collective algorithms. Each algorithm is a file that exports only its factory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/comm/collectives/collective.h"

namespace weft {

// Form of an all-reduce: a tree collective, whose plan has one part, that of rank 0 (Note [Tree
// collectives]); relayed, with the parts of RelayedAllReduceCounts (Note [Relayed exchanges]); or neither.
enum class AllReduceForm : uint8_t { kDirect, kTree, kRelayed };
AllReduceForm FormOfAllReduce(const GroupPlacement& placement, DType dtype, int64_t count, Relaying relaying);
std::vector<int64_t> RelayedAllReduceCounts(const GroupPlacement& placement, DType dtype, int64_t count);
// True if the form is kTree.
bool TakesTree(const GroupPlacement& placement, DType dtype, int64_t count, Relaying relaying);
// Barrier of any group, or an all-reduce of that form. `mirrored`: the simulation mirrors nodes.
std::unique_ptr<Operation> MakeTreeCollective(const GroupPlacement& placement, CollectivePlan&& plan,
                                              bool mirrored);
// True for an all-gather or reduce-scatter between nodes that nodes relay. `elements`: those of all parts.
// See Note [Relayed exchanges].
bool IsRelayed(const GroupPlacement& placement, const CollectivePlan& plan, int64_t elements,
               Relaying relaying);
// REQUIRES: IsRelayed, of an all-gather or a reduce-scatter. `mirrored`: the simulation mirrors nodes.
std::unique_ptr<Operation> MakeRelayedGather(const GroupPlacement& placement, CollectivePlan&& plan,
                                             bool mirrored);
std::unique_ptr<Operation> MakeRelayedReduceScatter(const GroupPlacement& placement, CollectivePlan&& plan,
                                                    bool mirrored);
// REQUIRES: the form is kRelayed. `mirrored`: the simulation mirrors nodes.
std::unique_ptr<Operation> MakeRelayedAllReduce(const GroupPlacement& placement, CollectivePlan&& plan,
                                                bool mirrored);
// All kinds of all-gather, and the broadcast of a group on one node.
std::unique_ptr<Operation> MakeAllGather(const GroupPlacement& placement, CollectivePlan&& plan);
// REQUIRES: the group spans nodes.
std::unique_ptr<Operation> MakeBroadcast(const GroupPlacement& placement, CollectivePlan&& plan);
std::unique_ptr<Operation> MakeReduceScatter(const GroupPlacement& placement, CollectivePlan&& plan);
std::unique_ptr<Operation> MakeAllReduce(const GroupPlacement& placement, CollectivePlan&& plan);
// Reduce-scatter or all-reduce. REQUIRES: the group is on one node.
std::unique_ptr<Operation> MakeNodeReduce(const GroupPlacement& placement, CollectivePlan&& plan);
// True for an all-gather, broadcast or reduction within one node that the rank that arrives last moves, or
// that ranks move by claims: of at most MaxWholeBytes over all ranks, in one share domain; of claims of at
// most MaxClaimedBytes; or an all-reduce of at most 4 KiB. See Note [Last arrival].
bool IsSmallOnNode(const GroupPlacement& placement, const CollectivePlan& plan, const EngineOptions& options);
// REQUIRES: IsSmallOnNode.
std::unique_ptr<Operation> MakeSmallNodeCollective(CollectivePlan&& plan);
// All-to-all and send-receive.
std::unique_ptr<Operation> MakeAllToAll(const GroupPlacement& placement, CollectivePlan&& plan);

}  // namespace weft
