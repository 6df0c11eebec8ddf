// The optimizer sharded over replicas, on one parameter group without a model.
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

// A group of one parameter, with one replica on each of two nodes.
struct TwoNodeGroup {
  static constexpr int64_t kElements = 8192;

  static absl::StatusOr<TwoNodeGroup> Make(Bootstrap& bootstrap) {
    TwoNodeGroup made;
    WEFT_ASSIGN_OR_RETURN(made.fixture,
                          GroupFixture::Make(bootstrap, 2,
                                             {.lanes = {.shard_optimizer_over_replicas = true,
                                                        .wire_compression = WireCompression::kLossless}}));
    WEFT_ASSIGN_OR_RETURN(made.group, made.fixture.Group(MakeParameters({{kElements}})));
    return made;
  }
  static float ValueAt(int update, int64_t place) {
    return static_cast<float>(place + 1) * (1.0F + 1e-3F * static_cast<float>(update));
  }
  void Update(int update) const {
    for (const ShardView& shard : group->Shards()) {
      for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] = ValueAt(update, shard.piece.start + i);
    }
  }
  // Gathers the updates. Returns the bytes that this rank sent between nodes, relative to the updated bytes.
  absl::StatusOr<double> GatherUpdates() const {
    const EngineCounters before = fixture.engine.engine->counters();
    WEFT_RETURN_IF_ERROR(group->AllGatherUpdates(Priority::kBulk));
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    const EngineCounters after = fixture.engine.engine->counters();
    const auto sent = static_cast<double>(after.wire_bytes - before.wire_bytes);
    return sent / static_cast<double>(UpdatedElements(group->slices()) * static_cast<int64_t>(sizeof(float)));
  }
  // True if each element of this rank's shard is `value(place)`, by its place in the parameter.
  template <typename Value>
  bool Holds(const Value& value) const {
    const auto shards = group->CurrentShards();
    if (!shards.ok()) return false;
    for (const ShardView& shard : *shards) {
      for (int64_t i = 0; i < shard.elements(); ++i) {
        if (shard.data[i] != value(shard.piece.start + i)) return false;
      }
    }
    return true;
  }

  GroupFixture fixture;
  std::unique_ptr<ParamGroup> group;
};

TEST(ReplicaOptimizer, SendsDeltasBetweenNodes) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const TwoNodeGroup two_nodes, TwoNodeGroup::Make(bootstrap));
    for (int update = 0; update < 3; ++update) {
      two_nodes.Update(update);
      WEFT_ASSIGN_OR_RETURN(const double sent, two_nodes.GatherUpdates());
      if (update > 0) {
        EXPECT_LT(sent, 0.7);
      }
      EXPECT_TRUE(two_nodes.Holds([&](int64_t place) { return TwoNodeGroup::ValueAt(update, place); }));
    }
    WEFT_ASSIGN_OR_RETURN(const double sent, two_nodes.GatherUpdates());
    EXPECT_LT(sent, 0.02);  // No element has changed.
    return absl::OkStatus();
  });
}

TEST(ReplicaOptimizer, GathersLoadedShards) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const TwoNodeGroup two_nodes, TwoNodeGroup::Make(bootstrap));
    for (int round = 0; round < 2; ++round) {
      two_nodes.Update(round);
      WEFT_RETURN_IF_ERROR(two_nodes.GatherUpdates().status());
      WEFT_RETURN_IF_ERROR(two_nodes.group->Load(LoadIndices));
      WEFT_RETURN_IF_ERROR(two_nodes.GatherUpdates().status());
      EXPECT_TRUE(two_nodes.Holds([](int64_t place) { return static_cast<float>(place); }));
    }
    return absl::OkStatus();
  });
}

// A collective that moves nothing.
class NoCollective : public PendingCollective {
 public:
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::Status WaitReleased() override { return absl::OkStatus(); }
  bool TestReleased() const override { return true; }
};

// Virtual time: the second replica submits its updates a second after the first one wants to gather.
TEST(ReplicaOptimizer, StartsACustomAllGatherWithTheUpdatesOfAllReplicas) {
  const auto body = [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const TwoNodeGroup two_nodes, TwoNodeGroup::Make(bootstrap));
    constexpr int64_t kPart = TwoNodeGroup::kElements / 2;
    int calls = 0;
    two_nodes.group->SetCustomAllGather([&](const AllGatherRequest& request) -> StartedCollective {
      ++calls;
      const auto* part = static_cast<const float*>(request.part);
      bool has_updates = true;
      for (int64_t i = 0; i < kPart; ++i) {
        const int64_t place = request.group.group_rank * kPart + i;
        has_updates = has_updates && part[i] == TwoNodeGroup::ValueAt(1, place);
      }
      EXPECT_TRUE(has_updates);
      return std::make_unique<NoCollective>();
    });
    two_nodes.Update(1);
    if (bootstrap.rank() >= 2) bootstrap.runtime().SleepFor(int64_t{1'000'000'000});
    WEFT_RETURN_IF_ERROR(two_nodes.group->AllGatherUpdates(Priority::kBulk));
    WEFT_RETURN_IF_ERROR(Gather(*two_nodes.group));
    EXPECT_EQ(calls, 1);
    WEFT_RETURN_IF_ERROR(two_nodes.group->Reshard());
    return two_nodes.fixture.context->FinishBackward();
  };
  EXPECT_OK(RunSimulatedRanks(NodeMap::RanksPerNode(4, 2), {}, body).status());
}

TEST(ReplicaOptimizer, GivesGradientHooksTheElementsThatTheRankUpdates) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        const GroupFixture fixture,
        GroupFixture::Make(bootstrap, 2, {.lanes = {.shard_optimizer_over_replicas = true}}));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{48}})));
    std::vector<float> seen;
    group->SetGradientHook([&seen](const std::string&, const TensorView& updated) {
      seen.assign(updated.As<float>(), updated.As<float>() + updated.elements());
      return absl::OkStatus();
    });
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    AddGradient(*group->parameters()[0], Indices(48));
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    const FlatRange own = group->slices().at(0).own;
    std::vector<float> expected;
    for (int64_t i = own.begin; i < own.end(); ++i) expected.push_back(static_cast<float>(2 * i));
    EXPECT_EQ(seen, expected);
    return absl::OkStatus();
  });
}

TEST(ReplicaOptimizer, NeitherSplitsNorGathersFrozenParameters) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(
        const GroupFixture fixture,
        GroupFixture::Make(bootstrap, 2, {.lanes = {.shard_optimizer_over_replicas = true}}));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      const auto parameters = MakeParameters({{31, 3}, {7, 5}, {64}});
      parameters[0]->requires_grad = false;
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
      WEFT_RETURN_IF_ERROR(group->PrepareGradients());
      for (const size_t trained : {1, 2})
        AddGradient(*parameters[trained], Indices(parameters[trained]->elements()));
      WEFT_RETURN_IF_ERROR(group->ReduceGradients());
      WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
      int64_t updated = 0;
      for (const ShardView& shard : group->Shards()) {
        EXPECT_EQ(shard.grad != nullptr, shard.parameter->requires_grad);
        for (int64_t i = 0; shard.grad != nullptr && i < shard.elements(); ++i, ++updated) {
          EXPECT_EQ(shard.grad[i], static_cast<float>(4 * (shard.piece.start + i)));
          shard.data[i] = -static_cast<float>(shard.piece.start + i);
        }
      }
      const EngineCounters before = fixture.engine.engine->counters();
      WEFT_RETURN_IF_ERROR(group->AllGatherUpdates(Priority::kBulk));
      EXPECT_EQ(fixture.engine.engine->counters().all_gather_bytes - before.all_gather_bytes,
                (group->layout().reduced_elements(bootstrap.rank() % 2) - UpdatedElements(group->slices())) *
                    static_cast<int64_t>(sizeof(float)));
      WEFT_RETURN_IF_ERROR(Gather(*group));
      for (const auto& parameter : parameters) {
        std::vector<float> expected = Indices(parameter->elements());
        if (parameter->requires_grad) {
          for (float& value : expected) value = -value;
        }
        EXPECT_EQ(ReadValues(parameter->data), expected);
      }
      WEFT_RETURN_IF_ERROR(group->Reshard());
      EXPECT_LE(updated, UpdatedElements(group->slices()));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
