// Groups with frozen parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

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

// Adds a gradient of indices to the parameters that require one, and reduces.
absl::Status ReduceIndices(const GroupFixture& fixture, ParamGroup& group) {
  WEFT_RETURN_IF_ERROR(group.PrepareGradients());
  for (const auto& parameter : group.parameters()) {
    EXPECT_EQ(parameter->grad.data != nullptr, parameter->requires_grad);
    AddGradient(*parameter, Indices(parameter->elements()));
  }
  WEFT_RETURN_IF_ERROR(group.ReduceGradients());
  return fixture.context->FinishBackward();
}

TEST(FrozenParameters, AreTrainedFromTheStepInWhichTheyAreThawed) {
  RunRanks(NodeMap::OneNode(3), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (ShardingPolicy policy : PolicyOfEachLayout()) {
      policy.trained_later = [](const Parameter& parameter) { return parameter.name != "p3"; };
      const auto parameters = MakeParameters({{31, 3}, {7, 5}, {64}, {9}});
      const auto freeze_all_but = [&](const std::vector<size_t>& trained) {
        for (const auto& parameter : parameters) parameter->requires_grad = false;
        for (const size_t i : trained) parameters[i]->requires_grad = true;
      };
      freeze_all_but({});
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
      for (const std::vector<size_t>& trained :
           std::vector<std::vector<size_t>>{{}, {1}, {0, 1, 2}, {2}, {}, {0}}) {
        freeze_all_but(trained);
        const int64_t before = fixture.context->state().counters().reduce_scatters;
        WEFT_RETURN_IF_ERROR(ReduceIndices(fixture, *group));
        EXPECT_EQ(fixture.context->state().counters().reduce_scatters - before, trained.empty() ? 0 : 1);
        EXPECT_OK(group->CheckGradientsReduced());
        for (const ShardView& shard : group->Shards()) {
          EXPECT_EQ(shard.grad != nullptr, shard.parameter->requires_grad);
          for (int64_t i = 0; shard.grad != nullptr && i < shard.elements(); ++i) {
            EXPECT_EQ(shard.grad[i], static_cast<float>(bootstrap.size() * (shard.piece.start + i)));
          }
        }
        group->ZeroGradients();
      }
    }
    return absl::OkStatus();
  });
}

TEST(FrozenParameters, AddNothingToMicrobatchesBeforeTheyAreThawed) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    ShardingPolicy policy;
    policy.trained_later = [](const Parameter&) { return true; };
    const auto parameters = MakeParameters({{16}, {16}});
    parameters[0]->requires_grad = false;
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    AddGradient(*parameters[1], Indices(16));
    parameters[0]->requires_grad = true;
    WEFT_RETURN_IF_ERROR(ReduceIndices(fixture, *group));
    for (const ShardView& shard : group->Shards()) {
      const int uses = shard.parameter == parameters[0].get() ? 1 : 2;
      for (int64_t i = 0; i < shard.elements(); ++i) {
        EXPECT_EQ(shard.grad[i], static_cast<float>(uses * 2 * (shard.piece.start + i)));
      }
    }
    return absl::OkStatus();
  });
}

TEST(FrozenParameters, CannotBeThawedWithoutAPlaceForGradients) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{16}, {16}});
    parameters[1]->requires_grad = false;
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters));
    parameters[1]->requires_grad = true;
    EXPECT_THAT(group->PrepareGradients(),
                StatusIs(kPrecondition, ::testing::AllOf(HasSubstr("'p1' of group 'group'"),
                                                         HasSubstr("ShardingPolicy::trained_later"))));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
