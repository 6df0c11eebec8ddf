// Parameter groups driven without modules, as Python's hooks drive them.
#include "weft/sharding/sharded_groups.h"

#include <cstddef>

#include <absl/synchronization/notification.h>
#include <absl/types/span.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"
#include "weft/sharding/parameter_exchange.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A root with the parameters p0 [5, 3] and p1 [4], and two groups below it with p2 [7] and p3 [2, 2].
struct Client {
  std::vector<std::shared_ptr<Parameter>> parameters;
  std::unique_ptr<ShardedGroups> groups;

  static absl::StatusOr<Client> Make(CommEngine& engine, const ShardingPolicy& policy = {}) {
    Client client;
    client.parameters = MakeParameters({{5, 3}, {4}, {7}, {2, 2}});
    const auto& p = client.parameters;
    std::vector<GroupMembers> members = {{"root", -1, {p[0], p[1]}}, {"a", 0, {p[2]}}, {"b", 0, {p[3]}}};
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, engine.bootstrap().size()));
    WEFT_ASSIGN_OR_RETURN(client.groups,
                          ShardedGroups::Create(engine, mesh, std::move(members), policy, LoadIndices));
    return client;
  }

  absl::Status Forward(const SchedulePass& pass) const {
    WEFT_RETURN_IF_ERROR(groups->BeforeForward(0, pass));
    for (const int group : {1, 2}) {
      WEFT_RETURN_IF_ERROR(groups->BeforeForward(group, pass));
      const Parameter& parameter = *parameters[static_cast<size_t>(group) + 1];
      EXPECT_EQ(ReadValues(parameter.data), Indices(parameter.elements()));
      WEFT_RETURN_IF_ERROR(groups->AfterForward(group, pass));
    }
    return groups->AfterForward(0, pass);
  }

  // Adds `value` to each element of each gradient, except for p1's, which is not used.
  absl::Status Backward(const SchedulePass& pass, float value) const {
    WEFT_RETURN_IF_ERROR(groups->BeforeBackward(0, pass));
    for (const int group : {2, 1}) {
      WEFT_RETURN_IF_ERROR(groups->BeforeBackward(group, pass));
      Add(*parameters[static_cast<size_t>(group) + 1], value);
      WEFT_RETURN_IF_ERROR(groups->AfterBackward(group));
    }
    Add(*parameters[0], value);
    WEFT_RETURN_IF_ERROR(groups->AfterBackward(0));
    return groups->FinishBackward();
  }

  // The reduced gradients of this rank's shard of a parameter; empty if there are none.
  std::vector<float> Gradient(size_t parameter) const {
    for (const ShardView& shard : groups->Shards()) {
      if (shard.parameter != parameters[parameter].get() || shard.grad == nullptr) continue;
      return {shard.grad, shard.grad + shard.elements()};
    }
    return {};
  }

 private:
  static void Add(Parameter& parameter, float value) {
    AddGradient(parameter, std::vector<float>(static_cast<size_t>(parameter.elements()), value));
  }
};

void WithClient(int ranks, const ShardingPolicy& policy,
                const std::function<absl::Status(Client&, CommEngine&, int rank)>& body) {
  RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(Client client, Client::Make(*engine.engine, policy));
    return body(client, *engine.engine, bootstrap.rank());
  });
}

std::vector<ShardingPolicy> SharedAndPrivate() {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOff;
  return {ShardingPolicy{}, policy};
}

TEST(ShardedGroups, GatherAndReduceWithoutModules) {
  for (const ShardingPolicy& policy : SharedAndPrivate()) {
    for (const int ranks : {1, 2, 3}) {
      WithClient(ranks, policy, [&](Client& client, CommEngine&, int rank) -> absl::Status {
        for (uintptr_t step = 1; step <= 3; ++step) {
          WEFT_RETURN_IF_ERROR(client.Forward({step, true}));
          WEFT_RETURN_IF_ERROR(client.Backward({step, true}, static_cast<float>(rank + 1)));
          const int sum_of_ranks = ranks * (ranks + 1) / 2;
          const auto sum = static_cast<float>(sum_of_ranks);
          for (const size_t used : {0, 2, 3}) EXPECT_THAT(client.Gradient(used), Each(sum));
          EXPECT_THAT(client.groups->ReducedParameters(0), ElementsAre(true, false));
          EXPECT_THAT(client.groups->ReducedParameters(1), ElementsAre(true));
          client.groups->ZeroGradients();
        }
        return absl::OkStatus();
      });
    }
  }
}

// Runs a step whose update adds 100 to each element, and gathers group 1.
absl::Status ExpectThatAnUpdateIsGathered(Client& client) {
  WEFT_RETURN_IF_ERROR(client.Forward({1, true}));
  WEFT_RETURN_IF_ERROR(client.Backward({1, true}, 1.0F));
  WEFT_RETURN_IF_ERROR(client.groups->UpdateShards([](absl::Span<const ShardView> shards) {
    for (const ShardView& shard : shards) {
      for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] += 100.0F;
    }
    return absl::OkStatus();
  }));
  WEFT_RETURN_IF_ERROR(client.groups->Unshard(1));
  EXPECT_TRUE(client.groups->is_being_unsharded(1));
  WEFT_RETURN_IF_ERROR(client.groups->WaitUnshard(1));
  EXPECT_TRUE(client.groups->is_unsharded(1));
  EXPECT_TRUE(client.groups->are_shards_read());
  EXPECT_THAT(ReadValues(client.parameters[2]->data), ElementsAre(100, 101, 102, 103, 104, 105, 106));
  WEFT_RETURN_IF_ERROR(client.groups->Reshard(1));
  WEFT_RETURN_IF_ERROR(client.groups->BeginWriting());
  EXPECT_FALSE(client.groups->are_shards_read());
  return absl::OkStatus();
}

TEST(ShardedGroups, WritesOfAnUpdateAreGathered) {
  WithClient(2, {}, [](Client& client, CommEngine&, int) { return ExpectThatAnUpdateIsGathered(client); });
}

TEST(ShardedGroups, WritesOfAnUpdateAreGatheredAfterABackwardThatKeptAPartOfTheImage) {
  ShardingPolicy policy;
  policy.reshard_after_forward_size = 2;
  WithClient(2, policy, [](Client& client, CommEngine&, int) {
    client.groups->SetUnshardInBackward(1, false);
    client.groups->SetReshardAfterBackward(1, false);
    return ExpectThatAnUpdateIsGathered(client);
  });
}

TEST(ShardedGroups, EachGroupHasSettersOfItsOwn) {
  WithClient(2, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    client.groups->SetRequiresGradientSync(1, false);
    client.groups->SetReshardAfterForward(2, false);
    client.groups->SetReshardAfterBackward(1, false);
    client.groups->SetGradientDivideFactor(2, 4.0F);
    WEFT_RETURN_IF_ERROR(client.Forward({1, true}));
    EXPECT_TRUE(client.groups->is_unsharded(2));
    WEFT_RETURN_IF_ERROR(client.Backward({1, true}, 1.0F));
    EXPECT_TRUE(client.groups->is_unsharded(1));
    EXPECT_FALSE(client.groups->is_unsharded(2));
    EXPECT_THAT(client.Gradient(0), Each(2.0F));
    EXPECT_THAT(client.Gradient(2), IsEmpty());
    EXPECT_THAT(client.Gradient(3), Each(0.5F));
    EXPECT_THAT(client.groups->CheckGradientsReduced(),
                StatusIs(kPrecondition, HasSubstr("'a' has unreduced gradients")));
    client.groups->SetRequiresGradientSync(1, true);
    WEFT_RETURN_IF_ERROR(client.Forward({2, true}));
    WEFT_RETURN_IF_ERROR(client.Backward({2, true}, 1.0F));
    EXPECT_THAT(client.Gradient(0), Each(4.0F));
    EXPECT_THAT(client.Gradient(2), Each(4.0F));
    return client.groups->CheckGradientsReduced();
  });
}

TEST(ShardedGroups, RepeatABackwardUntilItsPassIsAbandoned) {
  WithClient(1, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    const SchedulePass pass = {7, true};
    WEFT_RETURN_IF_ERROR(client.Forward(pass));
    WEFT_RETURN_IF_ERROR(client.Backward(pass, 1.0F));
    WEFT_RETURN_IF_ERROR(client.Backward(pass, 1.0F));
    EXPECT_THAT(client.Gradient(2), Each(2.0F));
    client.groups->Abandon(pass.id);
    EXPECT_THAT(client.groups->BeforeBackward(0, pass),
                StatusIs(kPrecondition, AllOf(HasSubstr("before backward of 'root'"),
                                              HasSubstr("without a forward of the same invocation"))));
    return client.groups->ResetAfterError();
  });
}

TEST(ShardedGroups, RefuseTheBackwardOfAPassFromBeforeAReset) {
  WithClient(1, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    const SchedulePass pass = {1, true};
    WEFT_RETURN_IF_ERROR(client.Forward(pass));
    client.groups->Stop(absl::DataLossError("a loss that is not finite"));
    WEFT_RETURN_IF_ERROR(client.groups->ResetAfterError());
    EXPECT_THAT(client.groups->BeforeBackward(0, pass),
                StatusIs(kPrecondition, HasSubstr("without a forward of the same invocation")));
    return client.groups->ResetAfterError();
  });
}

TEST(ShardedGroups, ARecomputeOfTheRootBeginsNoPass) {
  WithClient(2, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    const SchedulePass pass = {1, true};
    WEFT_RETURN_IF_ERROR(client.Forward(pass));
    WEFT_RETURN_IF_ERROR(client.groups->BeforeBackward(0, pass));
    WEFT_RETURN_IF_ERROR(client.Forward(pass));
    EXPECT_TRUE(client.groups->is_in_backward());
    WEFT_RETURN_IF_ERROR(client.groups->AfterBackward(0));
    WEFT_RETURN_IF_ERROR(client.groups->FinishBackward());
    EXPECT_FALSE(client.groups->is_in_backward());
    return client.groups->CheckGradientsReduced();
  });
}

TEST(ShardedGroups, ForgetReducedGradientsOfSomeParametersOrOfAll) {
  WithClient(2, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    const auto pass = [&](uintptr_t id) -> absl::Status {
      WEFT_RETURN_IF_ERROR(client.Forward({id, true}));
      return client.Backward({id, true}, 1.0F);
    };
    WEFT_RETURN_IF_ERROR(pass(1));
    const std::shared_ptr<const void> held = client.groups->ReducedGradients(1);
    const float* old = nullptr;
    for (const ShardView& shard : client.groups->Shards(1)) old = shard.grad;
    WEFT_RETURN_IF_ERROR(client.groups->ForgetReducedGradients(
        [&](const Parameter& parameter) { return &parameter == client.parameters[2].get(); }));
    EXPECT_THAT(client.Gradient(2), IsEmpty());
    EXPECT_THAT(client.Gradient(3), Each(2.0F));
    WEFT_RETURN_IF_ERROR(pass(2));
    EXPECT_THAT(client.Gradient(2), Each(2.0F));
    EXPECT_THAT(client.Gradient(3), Each(4.0F));
    if (old != nullptr) {
      EXPECT_EQ(*old, 2.0F);  // Its memory is still held.
    }
    WEFT_RETURN_IF_ERROR(client.groups->ForgetReducedGradients([](const Parameter&) { return true; }));
    WEFT_RETURN_IF_ERROR(pass(3));
    EXPECT_THAT(client.Gradient(3), Each(2.0F));
    return absl::OkStatus();
  });
}

TEST(ShardedGroups, ForgetReducedGradientsOfTheSelectedGroupsOrOfNone) {
  WithClient(2, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    WEFT_RETURN_IF_ERROR(client.Forward({1, true}));
    WEFT_RETURN_IF_ERROR(client.Backward({1, true}, 1.0F));
    const std::shared_ptr<const void> root = client.groups->ReducedGradients(0);
    WEFT_RETURN_IF_ERROR(client.groups->ForgetReducedGradients(
        [&](const Parameter& parameter) { return &parameter == client.parameters[2].get(); }));
    EXPECT_EQ(client.groups->ReducedGradients(0), root);  // It has not moved.
    // Reductions of the groups below the root are under way.
    client.groups->SetRequiresGradientSync(0, false);
    client.groups->SetIsLastBackward(false);
    WEFT_RETURN_IF_ERROR(client.Forward({2, true}));
    WEFT_RETURN_IF_ERROR(client.Backward({2, true}, 1.0F));
    const auto all = [](const Parameter&) { return true; };
    EXPECT_THAT(client.groups->ForgetReducedGradients(all),
                StatusIs(kPrecondition, HasSubstr("'a' has reductions under way")));
    EXPECT_EQ(client.groups->ReducedGradients(0), root);
    return client.groups->ForgetReducedGradients(
        [&](const Parameter& parameter) { return &parameter == client.parameters[0].get(); });
  });
}

TEST(ShardedGroups, HandOutGradientViewsBeforeTheirBackward) {
  WithClient(2, {}, [](Client& client, CommEngine&, int) -> absl::Status {
    WEFT_RETURN_IF_ERROR(client.Forward({1, true}));
    EXPECT_EQ(client.parameters[2]->grad.data, nullptr);
    WEFT_RETURN_IF_ERROR(client.groups->PrepareGradients(1));
    AddGradient(*client.parameters[2], std::vector<float>(7, 10.0F));
    WEFT_RETURN_IF_ERROR(client.Backward({1, true}, 1.0F));
    EXPECT_THAT(client.Gradient(2), Each(22.0F));
    return absl::OkStatus();
  });
}

TEST(ShardedGroups, OfTwoModelsShareAnEngine) {
  WithClient(2, {}, [](Client& first, CommEngine& engine, int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const Client second, Client::Make(engine));
    const auto value = static_cast<float>(rank + 1);
    for (uintptr_t step = 1; step <= 3; ++step) {
      WEFT_RETURN_IF_ERROR(first.Forward({step, true}));
      WEFT_RETURN_IF_ERROR(second.Forward({step, true}));
      WEFT_RETURN_IF_ERROR(first.Backward({step, true}, value));
      WEFT_RETURN_IF_ERROR(second.Backward({step, true}, 10.0F * value));
      EXPECT_THAT(first.Gradient(2), Each(3.0F));
      EXPECT_THAT(second.Gradient(2), Each(30.0F));
      first.groups->ZeroGradients();
      second.groups->ZeroGradients();
    }
    return absl::OkStatus();
  });
}

TEST(ShardedGroups, AWaitCheckEndsAWaitOnAllRanks) {
  absl::Notification has_failed;
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOff;
  WithClient(2, policy, [&](Client& client, CommEngine&, int rank) -> absl::Status {
    const auto is_interrupted = StatusIs(absl::StatusCode::kCancelled, HasSubstr("interrupted"));
    if (rank == 0) {
      has_failed.WaitForNotification();
      EXPECT_THAT(client.Forward({1, true}), ::testing::Not(IsOk()));
    } else {
      int checks = 0;
      client.groups->SetWaitCheck(
          [&] { return ++checks < 3 ? absl::OkStatus() : absl::CancelledError("interrupted"); });
      EXPECT_THAT(client.Forward({1, true}), is_interrupted);
      EXPECT_EQ(checks, 3);
      client.groups->SetWaitCheck(nullptr);
      has_failed.Notify();
    }
    WEFT_RETURN_IF_ERROR(client.groups->ResetAfterError());
    return client.Forward({2, false});
  });
}

// Virtual time: the engine's timeout is two minutes.
TEST(ShardedGroups, NameTheLateRankAtTheDeadlineOfAWaitWithChecks) {
  const SimReport report =
      RunSimulatedRanks(NodeMap::RanksPerNode(3, 1), {}, [](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
        WEFT_ASSIGN_OR_RETURN(const Client client, Client::Make(*engine.engine));
        client.groups->SetWaitCheck([] { return absl::OkStatus(); });
        if (bootstrap.rank() == 2) bootstrap.runtime().SleepFor(int64_t{200'000'000'000});
        EXPECT_THAT(std::string(client.Forward({1, true}).message()),
                    HasSubstr("rank(s) 2 have not submitted what others wait for"));
        return absl::OkStatus();
      });
  EXPECT_OK(report.status());
}

TEST(ShardedGroups, ExchangeNoWholeParametersOfF64Masters) {
  ShardingPolicy policy;
  policy.dtypes_of = [](const Parameter& parameter) {
    return parameter.name == "p2" ? ParameterDTypes{.master = DType::kF64} : ParameterDTypes{};
  };
  WithClient(2, policy, [](Client& client, CommEngine&, int) -> absl::Status {
    EXPECT_THAT(ParameterExchange::Create(*client.groups, [](const Parameter&) { return true; }),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("parameter group 'a' has f64 masters"),
                               HasSubstr("do not select parameters of this group"))));
    return ParameterExchange::Create(*client.groups, [](const Parameter& p) { return p.name != "p2"; })
        .status();
  });
}

// Both models would gather and update the parameter, and an optimizer of one would miss the other's passes.
TEST(ShardedGroups, RefuseAParameterThatAnotherModelShards) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine rank, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(Client client, Client::Make(*rank.engine));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    const auto shard_again = [&] {
      return ShardedGroups::Create(*rank.engine, mesh, {{"again", -1, {client.parameters[2]}}}, {},
                                   LoadIndices);
    };
    EXPECT_THAT(
        shard_again(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("parameter 'p2' of group 'again' is sharded already, by the group 'a'"),
                       HasSubstr("ShardingPolicy::ignored"))));
    client.groups.reset();
    EXPECT_OK(shard_again());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
