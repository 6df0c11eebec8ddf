// Training steps on simulated ranks, over random schedules: as many different results as there are races.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/sharded_toy.h"
#include "tests/support/schedule_count.h"
#include "weft/core/hash.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {

// Flags are seen late, and one rank is slow.
inline SimOptions LateMachine(uint64_t seed, int ranks) {
  SimOptions machine;
  machine.seed = seed;
  machine.jitter = 10.0;
  machine.flag_ns = 2'000;
  machine.slow = {{static_cast<int>(seed % static_cast<uint64_t>(ranks)), 20.0}};
  return machine;
}

// Every shard moves by its own value: what a rank reads at the wrong time is another number.
inline void WriteShards(const std::vector<ShardView>& shards) {
  for (const ShardView& shard : shards) {
    for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] = 0.75F * shard.data[i] + 0.01F;
  }
}

using ToyStep = std::function<absl::Status(ToyNet&, ShardedModel&, Bootstrap&, std::vector<float>& read)>;

// Three steps of one shard group, whose layers take some time; then the gradients.
inline absl::Status RunSteps(Bootstrap& bootstrap, const ShardingPolicy& policy, const ToyStep& step,
                             std::vector<float>& read) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, RankEngine::Make(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, bootstrap.size()));
  ToyNet net({6, 6, 6, 6});
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                     LoadInitialValues(kToySeed)));
  const auto nap = [&bootstrap](Module&, Invocation&, Tensors&) {
    bootstrap.runtime().SleepFor(int64_t{10'000} * (1 + bootstrap.rank()));
    return absl::OkStatus();
  };
  for (Module* block : net.blocks()) {
    block->AddForwardPreHook(nap);
    block->AddBackwardPreHook(nap);
  }
  for (int i = 0; i < 3; ++i) WEFT_RETURN_IF_ERROR(step(net, *model, bootstrap, read));
  WEFT_RETURN_IF_ERROR(model->sharded_groups().context().FinishBackward());
  for (const ShardView& shard : model->Shards()) {
    read.insert(read.end(), shard.grad, shard.grad + shard.elements());
  }
  return absl::OkStatus();
}

// How many different gradients, and values that `step` has read, come of the seeds.
inline size_t ResultsOver(uint64_t seeds, const NodeMap& nodes, const ShardingPolicy& policy,
                          const ToyStep& step) {
  std::set<uint64_t> results;
  for (uint64_t seed = 0; seed < ScheduleCount(seeds); ++seed) {
    std::vector<std::vector<float>> read(static_cast<size_t>(nodes.size()));
    const SimReport report =
        RunSimulatedRanks(nodes, LateMachine(seed, nodes.size()), [&](Bootstrap& bootstrap) {
          return RunSteps(bootstrap, policy, step, read[static_cast<size_t>(bootstrap.rank())]);
        });
    EXPECT_OK(report.status());
    uint64_t hash = 0;
    for (const auto& of_rank : read) hash = Hash64(of_rank.data(), of_rank.size() * sizeof(float), hash);
    results.insert(hash);
  }
  return results.size();
}

}  // namespace weft::testing
