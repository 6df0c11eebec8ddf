// Gradients that come after the reduction of their group, or are left of it, on some ranks only.
#include <functional>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/sharded_toy.h"
#include "tests/sharding/support/status_codes.h"
#include "weft/sharding/sharded_groups.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A root without parameters, and below it group 1 with p0 [7] and group 2 with p1 [4].
struct Client {
  std::vector<std::shared_ptr<Parameter>> parameters = MakeParameters({{7}, {4}});
  std::unique_ptr<ShardedGroups> groups;

  // Group 2 gets the gradient 1. `is_called`: group 1 takes part, with the gradient `value` unless that is 0.
  absl::Status Pass(uintptr_t id, bool is_called, float value, float late) const {
    const SchedulePass pass = {id, true};
    WEFT_RETURN_IF_ERROR(groups->BeforeForward(0, pass));
    for (int group = is_called ? 1 : 2; group <= 2; ++group) {
      WEFT_RETURN_IF_ERROR(groups->BeforeForward(group, pass));
      WEFT_RETURN_IF_ERROR(groups->AfterForward(group, pass));
    }
    WEFT_RETURN_IF_ERROR(groups->AfterForward(0, pass));
    WEFT_RETURN_IF_ERROR(groups->BeforeBackward(0, pass));
    for (int group = 2; group >= (is_called ? 1 : 2); --group) {
      WEFT_RETURN_IF_ERROR(groups->BeforeBackward(group, pass));
      Add(group, group == 2 ? 1.0F : value);
      WEFT_RETURN_IF_ERROR(groups->AfterBackward(group));
    }
    if (late != 0) {
      WEFT_RETURN_IF_ERROR(groups->PrepareGradients(1));
      Add(1, late);
    }
    WEFT_RETURN_IF_ERROR(groups->AfterBackward(0));
    return groups->FinishBackward();
  }

  void SetSync(bool sync) const {
    for (int group = 0; group < 3; ++group) groups->SetRequiresGradientSync(group, sync);
  }

  // The reduced gradients of the two groups are complete, and have these values.
  void ExpectGradients(float first, float second) const {
    EXPECT_OK(groups->CheckGradientsReduced());
    for (const int group : {1, 2}) {
      EXPECT_THAT(groups->ReducedParameters(group), ElementsAre(true));
      for (const ShardView& shard : groups->Shards(group)) {
        ASSERT_NE(shard.grad, nullptr);
        EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())),
                    Each(group == 1 ? first : second));
      }
    }
  }

 private:
  void Add(int group, float value) const {
    Parameter& parameter = *parameters[static_cast<size_t>(group) - 1];
    if (value != 0)
      AddGradient(parameter, std::vector<float>(static_cast<size_t>(parameter.elements()), value));
  }
};

void WithClient(const ShardingPolicy& policy,
                const std::function<absl::Status(const Client&, int rank)>& body) {
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    Client client;
    const auto& p = client.parameters;
    WEFT_ASSIGN_OR_RETURN(
        client.groups,
        ShardedGroups::Create(*engine.engine, mesh, {{"root", -1, {}}, {"a", 0, {p[0]}}, {"b", 0, {p[1]}}},
                              policy, LoadIndices));
    return body(client, bootstrap.rank());
  });
}

TEST(LateGradients, OfOneRankAreReducedByAll) {
  for (const ShardingPolicy& policy : {ShardingPolicy(), PrivateImages()}) {
    for (const bool is_called : {true, false}) {
      WithClient(policy, [&](const Client& client, int rank) -> absl::Status {
        for (uintptr_t step = 1; step <= 3; ++step) {
          WEFT_RETURN_IF_ERROR(client.Pass(step, is_called, 0.0F, rank == 1 ? 10.0F : 0.0F));
          client.ExpectGradients(10.0F, 2.0F);
          client.groups->ZeroGradients();
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(LateGradients, AddToThoseThatWereReduced) {
  WithClient({}, [](const Client& client, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(client.Pass(1, /*is_called=*/true, 1.0F, rank == 1 ? 10.0F : 0.0F));
    client.ExpectGradients(12.0F, 2.0F);
    return absl::OkStatus();
  });
}

TEST(LateGradients, StayUntilTheLastBackward) {
  WithClient({}, [](const Client& client, int rank) -> absl::Status {
    const float late = rank == 1 ? 10.0F : 0.0F;
    client.groups->SetIsLastBackward(false);
    WEFT_RETURN_IF_ERROR(client.Pass(1, /*is_called=*/true, 1.0F, late));
    client.groups->SetIsLastBackward(true);
    WEFT_RETURN_IF_ERROR(client.Pass(2, /*is_called=*/true, 1.0F, late));
    client.ExpectGradients(24.0F, 4.0F);
    return absl::OkStatus();
  });
}

TEST(LateGradients, AreAnErrorOnAllRanksIfTheseDoNotAgree) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  WithClient(policy, [](const Client& client, int rank) -> absl::Status {
    absl::Status status = client.Pass(1, /*is_called=*/true, 1.0F, rank == 1 ? 10.0F : 0.0F);
    if (status.ok()) status = client.Pass(2, /*is_called=*/true, 1.0F, 0.0F);  // Rank 0 learns of it.
    EXPECT_THAT(status,
                StatusIs(kPrecondition, HasSubstr("the gradient of parameter 'p0' came after group 'a'")));
    WEFT_RETURN_IF_ERROR(client.groups->ResetAfterError());
    WEFT_RETURN_IF_ERROR(client.Pass(3, /*is_called=*/true, 1.0F, 0.0F));
    client.ExpectGradients(2.0F, 2.0F);
    return absl::OkStatus();
  });
}

TEST(LateGradients, AreNamedBesideThoseThatWereReduced) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    const auto parameters = MakeParameters({{7}, {4}});
    ShardingPolicy policy;
    policy.unused_gradients = UnusedGradients::kZero;
    WEFT_ASSIGN_OR_RETURN(const auto groups, ShardedGroups::Create(*engine.engine, mesh,
                                                                   {{"root", -1, {}}, {"a", 0, parameters}},
                                                                   policy, LoadIndices));
    const SchedulePass pass = {1, true};
    const auto call = [&]() -> absl::Status {
      WEFT_RETURN_IF_ERROR(groups->BeforeForward(0, pass));
      WEFT_RETURN_IF_ERROR(groups->BeforeForward(1, pass));
      WEFT_RETURN_IF_ERROR(groups->AfterForward(1, pass));
      WEFT_RETURN_IF_ERROR(groups->AfterForward(0, pass));
      WEFT_RETURN_IF_ERROR(groups->BeforeBackward(0, pass));
      WEFT_RETURN_IF_ERROR(groups->BeforeBackward(1, pass));
      AddGradient(*parameters[0], std::vector<float>(7, 1.0F));
      AddGradient(*parameters[1], std::vector<float>(4, 1.0F));
      WEFT_RETURN_IF_ERROR(groups->AfterBackward(1));
      WEFT_RETURN_IF_ERROR(groups->PrepareGradients(1));
      AddGradient(*parameters[1], std::vector<float>(4, 1.0F));
      WEFT_RETURN_IF_ERROR(groups->AfterBackward(0));
      return groups->FinishBackward();
    };
    EXPECT_THAT(call(), StatusIs(kPrecondition, AllOf(HasSubstr("the gradient of parameter 'p1' came after"),
                                                      HasSubstr("to kNone (without updates in backward)"))));
    return absl::OkStatus();
  });
}

TEST(LateGradients, AreAnErrorAfterTheUpdateInBackward) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  WithClient(policy, [](const Client& client, int) -> absl::Status {
    const auto nothing = [](absl::Span<const ShardView>) { return absl::OkStatus(); };
    WEFT_RETURN_IF_ERROR(client.groups->BeginUpdatesInBackward(nothing, {}));
    WEFT_RETURN_IF_ERROR(client.Pass(1, /*is_called=*/true, 1.0F, 0.0F));
    WEFT_RETURN_IF_ERROR(client.groups->PrepareGradients(1));
    AddGradient(*client.parameters[0], std::vector<float>(7, 1.0F));
    EXPECT_THAT(client.groups->ReduceGradients(),
                StatusIs(kPrecondition, HasSubstr("parameter group 'a' came after its update in backward")));
    return absl::OkStatus();
  });
}

// Rank 1 alone has kept gradients of the group, which no rank calls in the last backward.
TEST(KeptGradients, AreReducedIfNoRankCallsTheirGroupAnyMore) {
  for (const UnusedGradients unused : {UnusedGradients::kNone, UnusedGradients::kZero}) {
    ShardingPolicy policy;
    policy.unused_gradients = unused;
    WithClient(policy, [](const Client& client, int rank) -> absl::Status {
      client.SetSync(false);
      WEFT_RETURN_IF_ERROR(client.Pass(1, /*is_called=*/rank == 1, 5.0F, 0.0F));
      client.SetSync(true);
      client.groups->RecordOrderAgain();
      WEFT_RETURN_IF_ERROR(client.Pass(2, /*is_called=*/false, 0.0F, 0.0F));
      client.ExpectGradients(5.0F, 4.0F);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
