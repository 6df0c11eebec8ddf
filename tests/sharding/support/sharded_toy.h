// Toy network of three equal layers, sharded over one shard group of threads.
#pragma once

#include "tests/sharding/support/toy_training.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {

// Each rank has images of its own. Every unshard is then an all-gather, which tests can count.
inline ShardingPolicy PrivateImages() {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOff;
  return policy;
}

// Ranks share images: in place if the shard group lies on one node, else on each node. FullyShard fails if
// they cannot.
inline ShardingPolicy SharedImages(DType dtype = DType::kF32) {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOn;
  policy.param_dtype = dtype;
  return policy;
}

// Runs `body(net, model, rank)` on each rank.
template <typename Body>
void WithToyModel(const NodeMap& nodes, const ShardingPolicy& policy, Body body) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, bootstrap.size()));
    ToyNet net({6, 6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                       LoadInitialValues(kToySeed)));
    return body(net, *model, bootstrap.rank());
  });
}

// The same with all ranks on one node.
template <typename Body>
void WithToyModel(int ranks, const ShardingPolicy& policy, Body body) {
  WithToyModel(NodeMap::OneNode(ranks), policy, body);
}

// Runs the only microbatch of a step over all ranks of the model.
inline absl::Status ToyPassOf(ToyNet& net, ShardedModel& model, int rank, int step = 0) {
  return ToyPass(net, rank, PartsOf(model).context.lanes().shard_group().size(), step, 0, 1);
}

}  // namespace weft::testing
