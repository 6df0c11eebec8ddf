// Ranks of one shard group, each with a sharded toy network of three equal layers.
#pragma once

#include "tests/sharding/toy_training.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {

// Every unshard is then a gather, which tests can count.
inline ShardingPolicy PrivateImages() {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOff;
  return policy;
}

// An error where ranks cannot share images: in place on one node, else on each.
inline ShardingPolicy OnlyShared(DType dtype = DType::kF32) {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOn;
  policy.param_dtype = dtype;
  return policy;
}

// Runs `body(net, model, rank)` on threads.
template <typename Body>
void WithToyModel(const NodeMap& nodes, const ShardingPolicy& policy, Body body) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, RankEngine::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, bootstrap.size()));
    ToyNet net({6, 6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                       LoadInitialValues(kToySeed)));
    return body(net, *model, bootstrap.rank());
  });
}

// The same on one node.
template <typename Body>
void WithToyModel(int ranks, const ShardingPolicy& policy, Body body) {
  WithToyModel(NodeMap::OneNode(ranks), policy, body);
}

// One microbatch of a step over all ranks of the model.
inline absl::Status ToyPassOf(ToyNet& net, ShardedModel& model, int rank, int step = 0) {
  return ToyPass(net, rank, model.sharded_groups().context().lanes().shard_group().size(), step, 0, 1);
}

}  // namespace weft::testing
