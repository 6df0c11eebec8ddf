// Two layers whose sizes no rank count divides, trained by AdamW: sharded in every way, against one rank that
// knows nothing of sharding, and against replicas.
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/gelu.h"
#include "weft/nn/linear.h"
#include "weft/nn/materialize.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/sharding/fully_shard.h"

namespace weft {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kRows = 12;  // Of all ranks together.
constexpr uint64_t kSeed = 3;
constexpr AdamWOptions kAdam = {.lr = 1e-2, .weight_decay = 0.1};

using Losses = std::array<double, kSteps>;
struct Sizes {
  int64_t in, hidden, out;
};
constexpr Sizes kSizes[] = {{16, 15, 8}, {7, 15, 3}, {16, 17, 8}};

struct Net : Sequential {
  explicit Net(const Sizes& sizes) : Sequential("net") {
    const Initializer initializer{.stddev = 0.3F};
    Add<Linear>("first", sizes.in, sizes.hidden, initializer);
    Add<Gelu>("gelu");
    Add<Linear>("second", sizes.hidden, sizes.out, initializer);
  }
};

// Forward and backward of rows [begin, begin + rows) of a step; returns their part of the loss, half the mean
// of y^2 over the step's rows.
absl::StatusOr<double> Pass(Net& net, const Sizes& sizes, int step, int64_t begin, int64_t rows) {
  const Tensor x = Tensor::Empty(DType::kF32, {rows, sizes.in});
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.As<float>()[i] = static_cast<float>((begin * sizes.in + i + step * 71) * 7919 % 201) / 100.0F - 1.0F;
  }
  Invocation invocation;
  WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(invocation, {x}));
  double loss = 0;
  for (int64_t i = 0; i < y[0].elements(); ++i) {
    float& value = y[0].As<float>()[i];
    loss += 0.5 * value * value / kRows;
    value /= kRows;  // Its gradient.
  }
  WEFT_RETURN_IF_ERROR(net.Backward(invocation, y).status());
  return loss;
}

Losses TrainAlone(const Sizes& sizes) {
  Net net(sizes);
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
  WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = 4 << 20}));
  WEFT_ASSIGN_OR_RETURN(const auto engine, CommEngine::Create(bootstrap, *heap));
  WEFT_ASSIGN_OR_RETURN(
      const DeviceMesh mesh,
      DeviceMesh::Create({{"replicate", sharding.replicate}, {"shard", sharding.shard}}, bootstrap.size()));
  Net net(sizes);
  const std::vector<Module*> blocks = sharding.one_group ? std::vector<Module*>() : net.children();
  WEFT_ASSIGN_OR_RETURN(const auto model,
                        FullyShard(net, blocks, mesh, *engine, sharding.policy, LoadInitialValues(kSeed)));
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

// Resharded after forward, kept, or resharded to pairs of ranks.
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

TEST(Parity, WithOneRankOnEveryMesh) {
  for (const Sizes& sizes : kSizes) {
    const Losses alone = TrainAlone(sizes);
    EXPECT_LT(alone.back(), 0.9 * alone.front());
    for (const auto& [replicate, shard] : {std::pair{1, 2}, {1, 3}, {1, 4}, {2, 2}, {4, 1}, {2, 3}}) {
      for (const bool one_group : {true, false}) {
        for (const ShardingPolicy& policy : PoliciesFor(shard)) {
          const Losses losses = TrainSharded(sizes, {replicate, shard, one_group, policy});
          for (size_t step = 0; step < kSteps; ++step) {
            EXPECT_NEAR(losses[step] / alone[step], 1, 1e-5)
                << sizes.hidden << ": " << replicate << "x" << shard << ", step " << step;
          }
        }
      }
    }
  }
}

TEST(Parity, WithReplicasToTheLastBit) {
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
