// Groups with frozen parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST(FrozenParameters, AreGatheredButNeitherReducedNorSent) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
      for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
        const auto parameters = MakeParameters({{31, 3}, {7, 5}, {64}, {9}});
        parameters[0]->requires_grad = false;
        parameters[2]->requires_grad = false;
        WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
        WEFT_RETURN_IF_ERROR(Gather(*group));
        for (const auto& parameter : parameters) {
          EXPECT_EQ(ReadValues(parameter->data), Indices(parameter->elements()));
        }
        const EngineCounters before = fixture.engine.engine->counters();
        for (int use = 0; use < 2; ++use) {
          WEFT_RETURN_IF_ERROR(group->PrepareGradients());
          EXPECT_EQ(parameters[0]->grad.data, nullptr);
          for (const size_t trained : {1, 3})
            AddGradient(*parameters[trained], Indices(parameters[trained]->elements()));
          WEFT_RETURN_IF_ERROR(
              group->ReduceGradients(use == 0 ? ReduceScope::kShard : ReduceScope::kShardAndReplicate));
        }
        WEFT_RETURN_IF_ERROR(group->Reshard());
        WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
        const int64_t own = group->layout().reduced_elements(bootstrap.rank());
        EXPECT_EQ(fixture.engine.engine->counters().reduce_scatter_bytes - before.reduce_scatter_bytes,
                  2 * own * (ranks - 1) * static_cast<int64_t>(sizeof(float)));
        for (const ShardView& shard : group->Shards()) {
          EXPECT_EQ(shard.grad != nullptr, shard.parameter->requires_grad);
          for (int64_t i = 0; shard.grad != nullptr && i < shard.elements(); ++i) {
            EXPECT_EQ(shard.grad[i], static_cast<float>(2 * ranks * (shard.piece.start + i)));
          }
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(FrozenParameters, AloneInAGroupAreNeverReduced) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      const auto parameters = MakeParameters({{5}, {3}});
      for (const auto& parameter : parameters) parameter->requires_grad = false;
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
      WEFT_RETURN_IF_ERROR(group->PrepareGradients());
      WEFT_RETURN_IF_ERROR(group->ReduceGradients());
      EXPECT_FALSE(group->has_unreduced_gradients());
      EXPECT_OK(group->CheckGradientsReduced());
      for (const ShardView& shard : group->Shards()) EXPECT_EQ(shard.grad, nullptr);
    }
    EXPECT_EQ(fixture.context->state().counters().reduce_scatters, 0);
    EXPECT_EQ(fixture.context->memory().peaks().gradient_bytes, 0);
    return fixture.context->FinishBackward();
  });
}

TEST(FrozenParameters, HaveZeroGradientsIfFrozenLater) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{16}, {16}});
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters));
    parameters[0]->requires_grad = false;
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    EXPECT_EQ(parameters[0]->grad.data, nullptr);
    AddGradient(*parameters[1], Indices(16));
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    for (const ShardView& shard : group->Shards()) {
      EXPECT_EQ(shard.grad != nullptr, shard.parameter == parameters[1].get());
    }
    // If it is trainable again, its view has the reduced gradient: zero.
    parameters[0]->requires_grad = true;
    for (const ShardView& shard : group->Shards()) {
      if (shard.parameter != parameters[0].get()) continue;
      EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(0.0F));
    }
    return absl::OkStatus();
  });
}

TEST(FrozenParameters, CannotBeUnfrozenLater) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{16}, {16}});
    parameters[1]->requires_grad = false;
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters));
    parameters[1]->requires_grad = true;
    EXPECT_THAT(group->PrepareGradients(),
                StatusIs(kPrecondition, ::testing::AllOf(HasSubstr("'p1' of group 'group'"),
                                                         HasSubstr("set requires_grad before sharding"))));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
