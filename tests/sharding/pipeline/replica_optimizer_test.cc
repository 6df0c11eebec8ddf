// The optimizer sharded over replicas. On every mesh, with every bucket and form of accumulation, it gives
// the bits of all-reduced gradients, at the costs of the formulas.
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/shared_images.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"
#include "weft/sharding/state_dict.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

void ExpectTheBitsOfAllReduces(const NodeMap& nodes, ToyRun run) {
  run.sizes = {16, 64, 65, 3};  // Large enough for whole blocks of the delta codec in each replica's part.
  const ToyOutcome reduced = TrainOnThreads(nodes, run);
  run.policy.shard_optimizer_over_replicas = true;
  for (const bool updates_directly : {false, true}) {
    run.updates_directly = updates_directly;
    for (const WireCompression compression : {WireCompression::kNone, WireCompression::kLossless}) {
      run.policy.wire_compression = compression;
      const ToyOutcome scattered = TrainOnThreads(nodes, run);
      EXPECT_EQ(scattered.weights, reduced.weights) << run.Describe();
      EXPECT_EQ(scattered.norms, reduced.norms) << run.Describe();
    }
  }
}

TEST(ReplicaOptimizer, GivesTheBitsOfAllReducesOnEveryMeshAndNodeMap) {
  for (int mesh = 0; const auto& [replicate, shard] : {std::pair{2, 1}, {2, 2}, {3, 1}, {2, 3}, {4, 1}}) {
    ++mesh;
    for (const NodeMap& nodes : {NodeMap::OneNode(replicate * shard),
                                 NodeMap::RanksPerNode(replicate * shard, shard == 1 ? 2 : shard)}) {
      for (const FlatKind layout : kFlatKinds) {
        if (!IsInSample(mesh, nodes.node_count(), static_cast<int>(layout))) continue;
        ToyRun run{.replicate = replicate, .shard = shard};
        run.policy.layout = layout;
        ExpectTheBitsOfAllReduces(nodes, run);
      }
    }
  }
}

TEST(ReplicaOptimizer, GivesTheBitsOfAllReducesInEveryDTypeAndFormOfAccumulation) {
  for (const GradientSync sync : {GradientSync::kLast, GradientSync::kReduceScatter, GradientSync::kEach}) {
    for (const FlatKind layout : kFlatKinds) {
      for (int dtypes = 0; const auto& [param, reduce] :
                           {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kBF16},
                            std::pair{DType::kBF16, DType::kF32}}) {
        if (!IsInSample(static_cast<int>(sync), static_cast<int>(layout), dtypes++)) continue;
        ToyRun run{.replicate = 2, .shard = 2, .microbatches = 3, .sync = sync};
        run.policy.layout = layout;
        run.policy.param_dtype = param;
        run.policy.reduce_dtype = reduce;
        ExpectTheBitsOfAllReduces(NodeMap::RanksPerNode(4, 2), run);
      }
    }
  }
}

TEST(ReplicaOptimizer, GivesTheBitsOfAllReducesIfPartialSumsAreSentRounded) {
  for (const FlatKind layout : kFlatKinds) {
    for (const int replicas : {3, 4}) {
      ToyRun run{.replicate = replicas, .shard = 1};
      run.policy.layout = layout;
      run.policy.reduce_dtype = DType::kBF16;
      ExpectTheBitsOfAllReduces(NodeMap::RanksPerNode(replicas, 2), run);
    }
  }
}

TEST(ReplicaOptimizer, GivesTheBitsOfAllReducesForOtherShardDimsAndPartialResharding) {
  ToyRun run{.replicate = 2, .shard = 2};
  run.policy.reshard_after_forward_size = 2;
  ExpectTheBitsOfAllReduces(NodeMap::OneNode(4), run);
  run.policy.layout = FlatKind::kPerParameter;
  run.policy.shard_dim = [](const Parameter& parameter) { return parameter.shape.size() > 1 ? 1 : -1; };
  ExpectTheBitsOfAllReduces(NodeMap::RanksPerNode(4, 2), run);
}

// Ranks hold an image in stripes if a segment has no room for all of it. The replicas of the node read it
// too.
TEST(ReplicaOptimizer, GivesTheSameBitsIfSegmentsHaveNoRoomForWholeImages) {
  for (const FlatKind layout : {FlatKind::kContiguous, FlatKind::kRows}) {
    const auto train = [&](bool stripes) {
      std::mutex mutex;
      std::vector<float> of_rank_0;
      RunRanks(NodeMap::OneNode(4), [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
        WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
        ToyNet net({256, 512});
        constexpr size_t kImageBytes = size_t{256 * 512} * sizeof(float);
        std::byte* ballast = nullptr;
        if (stripes) {
          const size_t free_bytes = engine.heap->segment_bytes() - engine.heap->allocated_bytes();
          WEFT_ASSIGN_OR_RETURN(ballast, engine.heap->Allocate(free_bytes - kImageBytes * 3 / 4));
        }
        ShardingPolicy policy;
        policy.layout = layout;
        policy.shard_optimizer_over_replicas = true;
        WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                           LoadInitialValues(kToySeed)));
        engine.heap->Free(ballast);
        EXPECT_EQ(model->residency().residency, Residency::kInPlace);
        const auto address = engine.heap->AddressOf(model->Shards().back().data);
        EXPECT_EQ(address->rank >= bootstrap.size(), stripes);
        for (int step = 0; step < 3; ++step) {
          WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), step, 0, 1));
          WEFT_RETURN_IF_ERROR(ToyUpdate(*model, 1.0, nullptr));
        }
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(*model));
        const std::lock_guard lock(mutex);
        if (bootstrap.rank() == 0) of_rank_0 = weights;
        return absl::OkStatus();
      });
      return of_rank_0;
    };
    const std::vector<float> whole = train(false);
    EXPECT_EQ(whole.size(), size_t{256 * 512 + 512 + 256});
    EXPECT_EQ(train(true), whole);
  }
}

// Runs `body(net, model, bootstrap)` on 2 replicas of 2 shards, one replica per node.
template <typename Body>
void WithReplicas(Body body, WireCompression compression = WireCompression::kNone) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
    ToyNet net({7, 64, 64, 64});  // Large enough for whole blocks of the delta codec.
    ShardingPolicy policy;
    policy.shard_optimizer_over_replicas = true;
    policy.wire_compression = compression;
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                       LoadInitialValues(kToySeed)));
    return body(net, *model, bootstrap);
  });
}

absl::Status Step(ToyNet& net, ShardedModel& model, Bootstrap& bootstrap, int number) {
  WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), number, 0, 1));
  return ToyUpdate(model, 1.0, nullptr);
}

TEST(ReplicaOptimizer, GivesEachElementToOneReplica) {
  std::mutex mutex;
  std::map<std::string, std::vector<int>> owners;
  WithReplicas([&](ToyNet&, ShardedModel& model, Bootstrap&) {
    const std::lock_guard lock(mutex);
    for (const ShardView& shard : model.Shards()) {
      std::vector<int>& update_counts = owners[shard.parameter->name];
      update_counts.resize(static_cast<size_t>(shard.parameter->elements()));
      for (int64_t i = 0; i < shard.elements(); ++i)
        ++update_counts[static_cast<size_t>(shard.piece.start + i)];
    }
    return absl::OkStatus();
  });
  ASSERT_FALSE(owners.empty());
  for (const auto& [name, counts] : owners) EXPECT_THAT(counts, ::testing::Each(1)) << name;
}

TEST(ReplicaOptimizer, GathersShardsThatWereWrittenAfterAnUnshard) {
  WithReplicas([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    for (int step = 0; step < 2; ++step) {
      WEFT_RETURN_IF_ERROR(Step(net, model, bootstrap, step));
      WEFT_ASSIGN_OR_RETURN(std::vector<float> expected, ToyWeights(model));
      WEFT_RETURN_IF_ERROR(PartsOf(model).context.FinishBackward());
      for (const ShardView& shard : model.Shards()) {
        for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] *= 2;
      }
      for (float& value : expected) value *= 2;
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> written, ToyWeights(model));
      EXPECT_EQ(written, expected);
    }
    return absl::OkStatus();
  });
}

TEST(ReplicaOptimizer, ReturnsWholeShardsAfterTheLastUpdate) {
  WithReplicas([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    WEFT_RETURN_IF_ERROR(Step(net, model, bootstrap, 0));
    WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> current, model.CurrentShards());
    std::map<std::string, std::vector<float>> whole;
    WEFT_RETURN_IF_ERROR(
        GatherFullState(model, model.Shards(), StateTarget::kEveryRank,
                        [&whole](const Parameter& parameter, absl::Span<const float> values) {
                          whole[parameter.name] = {values.begin(), values.end()};
                          return absl::OkStatus();
                        }));
    for (const ShardView& shard : current) {
      EXPECT_EQ(shard.grad, nullptr);
      const auto first = whole[shard.parameter->name].begin() + shard.piece.start;
      EXPECT_EQ(std::vector<float>(shard.data, shard.data + shard.elements()),
                std::vector<float>(first, first + shard.elements()));
    }
    return absl::OkStatus();
  });
}

TEST(ReplicaOptimizer, GathersUpdatesOncePerEpoch) {
  WithReplicas([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    const auto gathers_of_pass = [&](bool last) -> int64_t {
      const int64_t before = model.counters().all_gathers;
      model.SetIsLastBackward(last);
      EXPECT_OK(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
      return model.counters().all_gathers - before;
    };
    const int64_t groups = 4;
    // Shards are in place, so only updates are gathered.
    EXPECT_EQ(gathers_of_pass(false), groups);
    EXPECT_EQ(gathers_of_pass(true), 0);
    WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr, /*updates_directly=*/true));
    EXPECT_EQ(gathers_of_pass(true), groups);
    WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
    EXPECT_EQ(gathers_of_pass(true), 0);  // UpdateShards has submitted them.
    return absl::OkStatus();
  });
}

void ExpectSameBitsAfterAnError(WireCompression compression) {
  std::mutex mutex;
  std::map<bool, std::vector<float>> weights;
  for (const bool fails : {false, true}) {
    const auto train = [&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
      WEFT_RETURN_IF_ERROR(Step(net, model, bootstrap, 0));
      if (fails) {
        const auto hook = net.layer(1).AddForwardPreHook([&](Module&, Invocation&, Tensors&) {
          return bootstrap.rank() == 1 ? absl::DataLossError("injected") : absl::OkStatus();
        });
        absl::Status status = ToyPass(net, bootstrap.rank(), bootstrap.size(), 1, 0, 1);
        net.layer(1).RemoveHook(hook);
        if (status.ok()) status = model.ClipGradNorm(1.0).status();
        EXPECT_THAT(std::string(status.message()), HasSubstr("injected"));
        WEFT_RETURN_IF_ERROR(model.ResetAfterError());
      }
      WEFT_RETURN_IF_ERROR(Step(net, model, bootstrap, 1));
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> whole, ToyWeights(model));
      const std::lock_guard lock(mutex);
      weights[fails] = whole;
      return absl::OkStatus();
    };
    WithReplicas(train, compression);
  }
  EXPECT_EQ(weights[true], weights[false]);
}

TEST(ReplicaOptimizer, TrainsToTheSameBitsAfterAnError) {
  ExpectSameBitsAfterAnError(WireCompression::kNone);
  ExpectSameBitsAfterAnError(WireCompression::kLossless);
}

// The ranks have begun different numbers of gathers when they learn of the error. On virtual time, those that
// no peer joins miss their deadline at once.
TEST(ReplicaOptimizer, GathersUpdatesAfterTheUpdateOfOneReplicaFailed) {
  for (const int groups_before : {0, 1, 2}) {
    const auto body = [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 1));
      ToyNet net({6, 6, 6, 6});
      ShardingPolicy policy;
      policy.shard_optimizer_over_replicas = true;
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                         LoadInitialValues(kToySeed)));
      WEFT_RETURN_IF_ERROR(Step(net, *model, bootstrap, 0));
      int groups = 0;
      absl::Status status = model->UpdateShards([&](absl::Span<const ShardView>) {
        const bool fails = bootstrap.rank() == 1 && groups++ == groups_before;
        return fails ? absl::DataLossError("bad moments") : absl::OkStatus();
      });
      if (status.ok()) status = Step(net, *model, bootstrap, 1);
      EXPECT_THAT(std::string(status.message()), HasSubstr("bad moments"));
      EXPECT_THAT(model->ResetAfterError(),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("missing or incomplete on")));
      for (int step = 1; step <= 2; ++step) WEFT_RETURN_IF_ERROR(Step(net, *model, bootstrap, step));
      return ToyWeights(*model).status();
    };
    EXPECT_OK(RunSimulatedRanks(NodeMap::RanksPerNode(2, 1), {}, body).status())
        << groups_before << " groups before";
  }
}

TEST(ReplicaOptimizer, NeedsReplicas) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    ToyNet net({6, 6});
    ShardingPolicy policy;
    policy.shard_optimizer_over_replicas = true;
    EXPECT_THAT(
        FullyShard(net, net.blocks(), mesh, *engine.engine, policy, LoadInitialValues(kToySeed)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the mesh has no replicas: switch it off")));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
