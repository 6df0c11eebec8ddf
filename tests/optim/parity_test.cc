// Parity tests: two layers, trained with AdamW and sharded on every mesh with every policy, give the losses
// of one rank without sharding, and the bits of replicas (DDP). No rank count divides the sizes of the
// layers.
#include <array>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/optim/uneven_net.h"
#include "tests/support/rank_engine.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/materialize.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/sharding/fully_shard.h"

namespace weft {
namespace {

using ::weft::testing::kRows;
using ::weft::testing::kSizes;
using ::weft::testing::Pass;
using ::weft::testing::Sizes;
using ::weft::testing::UnevenNet;

constexpr int kSteps = 10;
constexpr uint64_t kSeed = 3;
constexpr AdamWOptions kAdam = {.lr = 1e-2, .weight_decay = 0.1};

using Losses = std::array<double, kSteps>;

Losses TrainOnOneRank(const Sizes& sizes) {
  UnevenNet net(sizes);
  MaterializedParameters memory(net, kSeed, DType::kF32, DType::kF32);
  std::vector<ShardView> shards;
  for (const auto& parameter : net.AllParameters()) {
    const int64_t count = parameter->elements();
    shards.push_back({parameter.get(),
                      {0, 0, 0, 1, count, count},
                      parameter->data.As<float>(),
                      parameter->grad.As<float>()});
  }
  ShardedAdamW optimizer(shards, kAdam);
  Losses losses;
  for (int step = 0; step < kSteps; ++step) {
    losses[static_cast<size_t>(step)] = Pass(net, sizes, step, 0, kRows).value();
    EXPECT_OK(optimizer.Step(shards));
    memory.ClearGradients();
  }
  return losses;
}

struct Sharding {
  int replicate, shard;
  bool one_group;
  ShardingPolicy policy;
};

absl::Status TrainRank(Bootstrap& bootstrap, const Sizes& sizes, const Sharding& sharding, Losses& losses) {
  WEFT_ASSIGN_OR_RETURN(const testing::RankEngine rank,
                        testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = 4 << 20}));
  WEFT_ASSIGN_OR_RETURN(
      const DeviceMesh mesh,
      DeviceMesh::Create({{"replicate", sharding.replicate}, {"shard", sharding.shard}}, bootstrap.size()));
  UnevenNet net(sizes);
  const std::vector<Module*> blocks = sharding.one_group ? std::vector<Module*>() : net.children();
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, blocks, mesh, *rank.engine, sharding.policy,
                                                     LoadInitialValues(kSeed)));
  ShardedAdamW optimizer(model->Shards(), kAdam);
  const int64_t rows = kRows / bootstrap.size();
  for (int step = 0; step < kSteps; ++step) {
    WEFT_ASSIGN_OR_RETURN(losses[static_cast<size_t>(step)],
                          Pass(net, sizes, step, bootstrap.rank() * rows, rows));
    WEFT_RETURN_IF_ERROR(optimizer.Step(model->Shards()));
    model->ZeroGradients();
  }
  return absl::OkStatus();
}

Losses TrainSharded(const Sizes& sizes, const Sharding& sharding) {
  const int ranks = sharding.replicate * sharding.shard;
  std::vector<Losses> parts(static_cast<size_t>(ranks));
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) {
    return TrainRank(bootstrap, sizes, sharding, parts[static_cast<size_t>(bootstrap.rank())]);
  }));
  Losses losses = {};
  for (const Losses& part : parts) {
    for (size_t step = 0; step < kSteps; ++step) losses[step] += part[step];
  }
  return losses;
}

// Reshard after forward, keep unsharded, or (with an even group) reshard to groups of two ranks.
std::vector<ShardingPolicy> PoliciesFor(int shard) {
  ShardingPolicy resharded;
  resharded.reshard_root_after_forward = true;
  ShardingPolicy kept;
  kept.reshard_after_forward = false;
  std::vector<ShardingPolicy> policies = {resharded, kept};
  if (shard % 2 == 0) {
    policies.push_back(resharded);
    policies.back().reshard_after_forward_size = 2;
  }
  return policies;
}

TEST(Parity, MatchesOneRankOnEveryMesh) {
  for (const Sizes& sizes : kSizes) {
    const Losses one_rank = TrainOnOneRank(sizes);
    EXPECT_LT(one_rank.back(), 0.9 * one_rank.front());
    for (const auto& [replicate, shard] : {std::pair{1, 2}, {1, 3}, {1, 4}, {2, 2}, {4, 1}, {2, 3}}) {
      for (const bool one_group : {true, false}) {
        for (const ShardingPolicy& policy : PoliciesFor(shard)) {
          const Losses losses = TrainSharded(sizes, {replicate, shard, one_group, policy});
          for (size_t step = 0; step < kSteps; ++step) {
            EXPECT_NEAR(losses[step] / one_rank[step], 1, 1e-5)
                << sizes.hidden << ": " << replicate << "x" << shard << ", step " << step;
          }
        }
      }
    }
  }
}

TEST(Parity, MatchesReplicasBitForBit) {
  for (const Sizes& sizes : kSizes) {
    const Losses replicas = TrainSharded(sizes, {4, 1, false, {}});
    for (const bool one_group : {true, false}) {
      for (const ShardingPolicy& policy : PoliciesFor(4)) {
        EXPECT_EQ(TrainSharded(sizes, {1, 4, one_group, policy}), replicas);
        EXPECT_EQ(TrainSharded(sizes, {2, 2, one_group, policy}), replicas);
      }
    }
  }
}

}  // namespace
}  // namespace weft
