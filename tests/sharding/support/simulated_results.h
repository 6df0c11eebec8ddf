// Training steps on simulated ranks under random schedules. More than one distinct result means a data race.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/support/schedule_count.h"
#include "weft/core/hash.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {

// A machine that delivers flags late and has one slow rank.
inline SimOptions MachineWithDelays(uint64_t seed, int ranks) {
  SimOptions machine;
  machine.seed = seed;
  machine.jitter = 10.0;
  machine.flag_ns = 2'000;
  machine.slow = {{static_cast<int>(seed % static_cast<uint64_t>(ranks)), 20.0}};
  return machine;
}

// Changes every element, so that a read in the wrong epoch gives another value.
inline void WriteShards(const std::vector<ShardView>& shards) {
  for (const ShardView& shard : shards) {
    for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] = 0.75F * shard.data[i] + 0.01F;
  }
}

// Runs one step. `read`: receives the values to compare.
using ToyStep = std::function<absl::Status(ToyNet&, ShardedModel&, Bootstrap&, std::vector<float>& read)>;

// Runs three steps over one shard group and appends the gradients to `read`. Each layer takes virtual time,
// longer on higher ranks.
inline absl::Status RunSteps(Bootstrap& bootstrap, ShardingPolicy policy, const ToyStep& step,
                             std::vector<float>& read) {
  policy.unused_gradients = UnusedGradients::kZero;  // Steps need not mark their last backward.
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, bootstrap.size()));
  ToyNet net({6, 6, 6, 6});
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                     LoadInitialValues(kToySeed)));
  const auto sleep = [&bootstrap](Module&, Invocation&, Tensors&) {
    bootstrap.runtime().SleepFor(int64_t{10'000} * (1 + bootstrap.rank()));
    return absl::OkStatus();
  };
  for (Module* block : net.blocks()) {
    block->AddForwardPreHook(sleep);
    block->AddBackwardPreHook(sleep);
  }
  for (int i = 0; i < 3; ++i) WEFT_RETURN_IF_ERROR(step(net, *model, bootstrap, read));
  WEFT_RETURN_IF_ERROR(PartsOf(*model).context.FinishBackward());
  for (const ShardView& shard : model->Shards()) {
    read.insert(read.end(), shard.grad, shard.grad + shard.elements());
  }
  return absl::OkStatus();
}

// Counts the distinct results (gradients and values that `step` read) over `seeds` random schedules.
inline size_t DistinctResults(uint64_t seeds, const NodeMap& nodes, const ShardingPolicy& policy,
                              const ToyStep& step) {
  std::set<uint64_t> results;
  for (uint64_t seed = 0; seed < ScheduleCount(seeds); ++seed) {
    std::vector<std::vector<float>> read(static_cast<size_t>(nodes.size()));
    const SimReport report =
        RunSimulatedRanks(nodes, MachineWithDelays(seed, nodes.size()), [&](Bootstrap& bootstrap) {
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
