// Hooks on reduced gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(GradientHook, SeesEachReductionOnceBeforeItIsAdded) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 2));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ShardingPolicy policy;
      policy.reduce_dtype = dtype;
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{16}}), policy));
      std::vector<float> seen;
      group->SetGradientHook([&seen](const std::string& name, const TensorView& view) {
        const auto shard = absl::MakeSpan(view.As<float>(), static_cast<size_t>(view.elements()));
        EXPECT_EQ(name, "group");
        seen.push_back(shard[3]);
        for (float& value : shard) value *= 10;
        return absl::OkStatus();
      });
      for (const auto& [value, scope] :
           {std::pair{1.0F, ReduceScope::kShardAndReplicate}, std::pair{2.0F, ReduceScope::kShard},
            std::pair{3.0F, ReduceScope::kShardAndReplicate}}) {
        WEFT_RETURN_IF_ERROR(group->PrepareGradients());
        AddGradient(*group->parameters()[0], std::vector<float>(16, value));
        WEFT_RETURN_IF_ERROR(group->ReduceGradients(scope));
        EXPECT_THAT(seen, ::testing::IsEmpty());  // FinishBackward calls the hooks.
      }
      WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
      EXPECT_THAT(seen, ::testing::ElementsAre(2, 10));
      EXPECT_THAT(absl::MakeConstSpan(group->Shards().at(0).grad, 16), Each(120.0F));
    }
    return absl::OkStatus();
  });
}

TEST(GradientHook, FailsTheContextWithItsError) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{16}})));
    group->SetGradientHook(
        [](const std::string&, const TensorView&) { return absl::InternalError("hook failed"); });
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
    const auto failed =
        AllOf(HasSubstr("gradient hook of parameter group 'group'"), HasSubstr("hook failed"));
    EXPECT_THAT(fixture.context->FinishBackward(), StatusIs(absl::StatusCode::kInternal, failed));
    EXPECT_THAT(group->Unshard(Priority::kCritical), StatusIs(absl::StatusCode::kInternal, failed));
    return absl::OkStatus();
  });
}

TEST(GradientHook, MayCommunicateBecauseAllRanksRunHooksInOneOrder) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 2, {.bounds = {1, 1}}));
    std::vector<std::unique_ptr<ParamGroup>> groups;
    for (int i = 0; i < 5; ++i) {
      const auto parameters = MakeParameters({{32}});
      WEFT_ASSIGN_OR_RETURN(groups.emplace_back(), fixture.Group(parameters, {}, absl::StrCat("g", i)));
      groups.back()->SetGradientHook([&](const std::string& name, const TensorView& view) -> absl::Status {
        const auto shard = absl::MakeSpan(view.As<float>(), static_cast<size_t>(view.elements()));
        float largest = shard[0];
        WEFT_RETURN_IF_ERROR(
            fixture.context->lanes().AllReduceScalars(name, &largest, DType::kF32, 1, ReduceOp::kMax));
        for (float& value : shard) value /= largest;
        return absl::OkStatus();
      });
      WEFT_RETURN_IF_ERROR(groups.back()->PrepareGradients());
      std::vector<float> values(32, 1.0F);
      values[16] = 4.0F;  // The first element of the second rank's shard.
      AddGradient(*parameters[0], values);
      WEFT_RETURN_IF_ERROR(groups.back()->ReduceGradients());
    }
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    for (const auto& group : groups) {
      const ShardView shard = group->Shards().at(0);
      EXPECT_EQ(shard.grad[0], bootstrap.rank() % 2 == 0 ? 0.25F : 1.0F);
      EXPECT_EQ(shard.grad[1], 0.25F);
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
