#include "sharding/group/param_group.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = ParamGroup::State;

TEST(ParamGroup, GoesThroughTheSameStatesForEverySize) {
  const std::vector<std::vector<Shape>> groups = {{}, {{0, 3}}, {{1}}, {{5, 7}, {0}, {3}}, {{64}}};
  for (const int ranks : {1, 2, 3}) {
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
      for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
        for (const std::vector<Shape>& shapes : groups) {
          const auto parameters = MakeParameters(shapes);
          WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
          EXPECT_EQ(group->state(), State::kSharded);
          WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
          EXPECT_EQ(group->state(), State::kUnsharding);
          WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
          WEFT_RETURN_IF_ERROR(group->WaitUnshard());
          EXPECT_EQ(group->state(), State::kUnsharded);
          for (const auto& parameter : parameters) {
            EXPECT_EQ(ReadValues(parameter->data), Indices(parameter->elements()));
          }
          WEFT_RETURN_IF_ERROR(group->PrepareGradients());
          WEFT_RETURN_IF_ERROR(group->ReduceGradients());
          WEFT_RETURN_IF_ERROR(group->Reshard());
          EXPECT_EQ(group->state(), State::kSharded);
          WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
          EXPECT_TRUE(group->has_reduced_gradients());
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(ParamGroup, SumsGradientsAndCountsUnwrittenOnesAsZero) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      const auto parameters = MakeParameters({{7, 5}, {9}, {4}});
      parameters[2]->requires_grad = false;
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
      for (int use = 0; use < 2; ++use) {  // The second use has buffers that were used before.
        WEFT_RETURN_IF_ERROR(group->PrepareGradients());
        // Only one rank writes a gradient of the second parameter.
        AddGradient(*parameters[0], Indices(35));
        if (bootstrap.rank() == 1) AddGradient(*parameters[1], Indices(9));
        EXPECT_EQ(parameters[2]->grad.data, nullptr);
        WEFT_RETURN_IF_ERROR(group->ReduceGradients());
        EXPECT_EQ(parameters[0]->grad.data, nullptr);
        WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
        for (const ShardView& shard : group->Shards()) {
          if (shard.parameter == parameters[2].get()) {
            EXPECT_EQ(shard.grad, nullptr);
            continue;
          }
          const float ranks = shard.parameter == parameters[0].get() ? 3.0F : 1.0F;
          for (int64_t i = 0; i < shard.elements(); ++i) {
            EXPECT_EQ(shard.grad[i], ranks * static_cast<float>(shard.piece.start + i));
          }
        }
        group->ZeroGradients();
      }
    }
    return absl::OkStatus();
  });
}

TEST(ParamGroup, ReducesEachBucketOverItsOwnReplicas) {
  // Two replicas of a shard group of two; bucket 0 is replicated, bucket 1 is not.
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    const int rank = bootstrap.rank();
    const int replica = rank / 2;
    WEFT_ASSIGN_OR_RETURN(
        const auto context,
        CommContext::Create(
            *engine.engine, GroupOf("shard", {2 * replica, 2 * replica + 1}, rank),
            {GroupOf("replicate", {rank % 2, rank % 2 + 2}, rank), GroupOf("alone", {rank}, rank)}, {}));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      const int64_t before = context->state().counters().all_reduces;
      const auto parameters = MakeParameters({{40}, {3}, {5, 5}});
      WEFT_ASSIGN_OR_RETURN(const auto group, MakeGroup(*context, parameters, policy, "group", {1, 0, 0}));
      WEFT_RETURN_IF_ERROR(group->PrepareGradients());
      for (const auto& parameter : parameters) {
        AddGradient(*parameter, std::vector<float>(static_cast<size_t>(parameter->elements()),
                                                   static_cast<float>(1 << (2 * rank))));
      }
      WEFT_RETURN_IF_ERROR(group->ReduceGradients());
      WEFT_RETURN_IF_ERROR(context->FinishBackward());
      EXPECT_EQ(context->state().counters().all_reduces - before, 1);
      const float own_replica = replica == 0 ? 1 + 4 : 16 + 64;
      for (const ShardView& shard : group->Shards()) {
        const float expected = shard.parameter == parameters[0].get() ? own_replica : 1 + 4 + 16 + 64;
        EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(expected));
      }
    }
    return absl::OkStatus();
  });
}

TEST(ParamGroup, RefusesADuplicateParameter) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    auto parameters = MakeParameters({{8}});
    parameters.push_back(parameters[0]);
    EXPECT_THAT(fixture.Group(parameters),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'p0' twice")));
    return absl::OkStatus();
  });
}

TEST(ParamGroup, CopiesIntoForeignStorageAndCountsIt) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{6}, {3}});
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters));
    std::array<float, 3> own = {};
    parameters[1]->data = TensorView::Contiguous(own.data(), DType::kF32, {3});
    WEFT_RETURN_IF_ERROR(Gather(*group));
    EXPECT_THAT(own, ElementsAre(0, 1, 2));
    EXPECT_EQ(fixture.context->state().counters().copied_bytes, 12);
    // The next unshard finds storage that was given while the group is unsharded.
    std::array<float, 6> other = {};
    parameters[0]->data = TensorView::Contiguous(other.data(), DType::kF32, {6});
    WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
    EXPECT_THAT(other, ElementsAre(0, 1, 2, 3, 4, 5));
    // Without storage of its own, a parameter is a view again.
    WEFT_RETURN_IF_ERROR(group->Reshard());
    for (const auto& parameter : parameters) parameter->data.data = nullptr;
    const int64_t copied = fixture.context->state().counters().copied_bytes;
    WEFT_RETURN_IF_ERROR(Gather(*group));
    EXPECT_EQ(fixture.context->state().counters().copied_bytes, copied);
    return group->Reshard();
  });
}

TEST(ParamGroup, StaysShardedIfForeignStorageDoesNotFitAndRecovers) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      const auto parameters = MakeParameters({{6}, {3}});
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
      std::array<float, 4> own = {};
      const TensorView wrong = TensorView::Contiguous(own.data(), DType::kF32, {4});
      parameters[1]->data = wrong;
      EXPECT_THAT(group->Unshard(Priority::kCritical), StatusIs(kPrecondition, HasSubstr("'p1'")));
      parameters[1]->data.data = nullptr;
      WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
      parameters[1]->data = wrong;  // After the check in Unshard, while the gather is under way.
      EXPECT_THAT(group->WaitUnshard(), StatusIs(kPrecondition, HasSubstr("'p1'")));
      EXPECT_EQ(group->state(), State::kSharded);
      EXPECT_EQ(parameters[0]->data.data, nullptr);
      parameters[1]->data.data = nullptr;
      WEFT_RETURN_IF_ERROR(Gather(*group));
      EXPECT_EQ(ReadValues(parameters[1]->data), Indices(3));
    }
    return absl::OkStatus();
  });
}

TEST(ParamGroup, CollectsAReplacedGradient) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{3}});
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters));
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    std::array<float, 3> replacement = {3, 4, 5};
    parameters[0]->grad = TensorView::Contiguous(replacement.data(), DType::kF32, {3});
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    const ShardView shard = group->Shards().at(0);
    EXPECT_THAT(absl::MakeConstSpan(shard.grad, 3), ElementsAre(3, 4, 5));
    EXPECT_EQ(fixture.context->state().counters().copied_bytes, 12);
    return absl::OkStatus();
  });
}

TEST(ParamGroup, LoadsFromTheParametersAndDropsTheirData) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{40}});
    WEFT_ASSIGN_OR_RETURN(const auto group, MakeGroup(*fixture.context, parameters));
    EXPECT_THAT(group->Load(LoadFromParameters()), StatusIs(kPrecondition, HasSubstr("'p0'")));
    std::array<BF16, 40> own;
    for (size_t i = 0; i < own.size(); ++i) own[i] = ToBF16(static_cast<float>(i));
    parameters[0]->data = TensorView::Contiguous(own.data(), DType::kBF16, {40});
    WEFT_RETURN_IF_ERROR(group->Load(LoadFromParameters()));
    group->DropParameterData();
    EXPECT_EQ(parameters[0]->data.data, nullptr);
    WEFT_RETURN_IF_ERROR(Gather(*group));
    EXPECT_EQ(ReadValues(parameters[0]->data), Indices(40));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
