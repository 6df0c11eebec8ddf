// Reduced gradients of single parameters of a group: they are forgotten, or external ones count instead.
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/types/span.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/status.h"
#include "weft/sharding/sharded_groups.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// One group of two parameters, on one of two ranks.
struct PairOfParameters {
  ShardedGroups& groups;
  const std::vector<std::shared_ptr<Parameter>>& parameters;

  absl::Status Forward(const SchedulePass& pass) const {
    WEFT_RETURN_IF_ERROR(groups.BeforeForward(0, pass));
    return groups.AfterForward(0, pass);
  }
  // Adds 1 to the gradients of the first parameter, and of the second one if it is used.
  absl::Status Backward(const SchedulePass& pass, bool uses_second = true) const {
    WEFT_RETURN_IF_ERROR(groups.BeforeBackward(0, pass));
    AddGradient(*parameters[0], std::vector<float>(4, 1.0F));
    if (uses_second) AddGradient(*parameters[1], std::vector<float>(6, 1.0F));
    WEFT_RETURN_IF_ERROR(groups.AfterBackward(0));
    return groups.FinishBackward();
  }
  bool IsFirst(const Parameter& parameter) const { return &parameter == parameters[0].get(); }
  absl::Status ForgetFirst() const {
    return groups.ForgetReducedGradients([&](const Parameter& parameter) { return IsFirst(parameter); });
  }
  void ExpectGradients(float first, float second) const {
    for (const ShardView& shard : groups.Shards()) {
      const float expected = IsFirst(*shard.parameter) ? first : second;
      EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(expected));
    }
  }
};

// Runs `body` on both ranks.
void WithPair(absl::FunctionRef<absl::Status(const PairOfParameters&, int rank)> body,
              const ShardingPolicy& policy = {}) {
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    const auto p = MakeParameters({{4}, {6}});
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    WEFT_ASSIGN_OR_RETURN(const auto groups, ShardedGroups::Create(*engine.engine, mesh, {{"root", -1, p}},
                                                                   policy, LoadIndices));
    return body({*groups, p}, bootstrap.rank());
  });
}

// A parameter of a group of several, cleared alone. A holder keeps its values.
TEST(ShardedGroups, ForgetTheReducedGradientOfOneParameterOfAGroup) {
  WithPair([](const PairOfParameters& pair, int rank) -> absl::Status {
    std::shared_ptr<const void> held;
    absl::Span<const float> forgotten;
    for (uintptr_t step = 1; step <= 2; ++step) {
      const SchedulePass pass = {step, true};
      WEFT_RETURN_IF_ERROR(pair.Forward(pass));
      WEFT_RETURN_IF_ERROR(pair.Backward(pass, step == 2 || rank == 0));
      EXPECT_THAT(pair.groups.ReducedParameters(0), ElementsAre(true, true));
      if (step == 1) {
        held = pair.groups.ReducedGradients(0);
        for (const ShardView& shard : pair.groups.Shards()) {
          if (pair.IsFirst(*shard.parameter)) {
            forgotten = {shard.grad, static_cast<size_t>(shard.elements())};
          }
        }
        WEFT_RETURN_IF_ERROR(pair.ForgetFirst());
        EXPECT_THAT(forgotten, Each(2.0F));
        EXPECT_THAT(pair.groups.ReducedParameters(0), ElementsAre(false, true));
        for (const ShardView& shard : pair.groups.Shards())
          EXPECT_EQ(shard.grad == nullptr, pair.IsFirst(*shard.parameter));
      }
    }
    pair.ExpectGradients(2.0F, 3.0F);
    return absl::OkStatus();
  });
}

// The gradients of the pass without a reduction stay, and those of earlier reductions have views.
TEST(ShardedGroups, ForgetAReducedGradientWhileOthersWaitForTheirReduction) {
  WithPair([](const PairOfParameters& pair, int /*rank*/) -> absl::Status {
    for (uintptr_t step = 1; step <= 3; ++step) {
      const SchedulePass pass = {step, true};
      pair.groups.SetRequiresGradientSync(0, step != 2);
      WEFT_RETURN_IF_ERROR(pair.Forward(pass));
      WEFT_RETURN_IF_ERROR(pair.Backward(pass));
      if (step != 2) continue;
      WEFT_RETURN_IF_ERROR(pair.ForgetFirst());
      for (const ShardView& shard : pair.groups.Shards()) EXPECT_EQ(shard.grad, nullptr);
      for (const MasterView& shard : pair.groups.ReducedSums(0)) {
        EXPECT_EQ(shard.grad == nullptr, pair.IsFirst(*shard.parameter));
        if (shard.grad != nullptr) {
          EXPECT_EQ(*reinterpret_cast<const float*>(shard.grad), 2.0F);
        }
      }
    }
    EXPECT_THAT(pair.groups.ReducedParameters(0), ElementsAre(true, true));
    pair.ExpectGradients(4.0F, 6.0F);
    return absl::OkStatus();
  });
}

// The sum over the shard group stays, and the next reduction over all ranks adds to it.
TEST(ShardedGroups, ForgetAReducedGradientWhileAPartialSumWaitsForItsReduction) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;  // No agreement is due.
  const auto body = [](const PairOfParameters& pair, int /*rank*/) -> absl::Status {
    for (uintptr_t step = 1; step <= 3; ++step) {
      const SchedulePass pass = {step, true};
      pair.groups.SetRequiresAllReduce(0, step != 2);
      WEFT_RETURN_IF_ERROR(pair.Forward(pass));
      WEFT_RETURN_IF_ERROR(pair.Backward(pass));
      if (step == 2) WEFT_RETURN_IF_ERROR(pair.ForgetFirst());
    }
    WEFT_RETURN_IF_ERROR(pair.groups.CheckGradientsReduced());
    pair.ExpectGradients(4.0F, 6.0F);
    return absl::OkStatus();
  };
  WithPair(body, policy);
}

TEST(ShardedGroups, CountExternalGradientsInNorms) {
  WithPair([](const PairOfParameters& pair, int /*rank*/) -> absl::Status {
    WEFT_RETURN_IF_ERROR(pair.Forward({1, true}));
    WEFT_RETURN_IF_ERROR(pair.Backward({1, true}));
    const ClipSet all{[](const Parameter&) { return true; }, kNoClipping};
    const std::vector<float> threes(4, 3.0F);  // As many as the rank may own.
    const ExternalGradients external = {
        {pair.parameters[0].get(), reinterpret_cast<const std::byte*>(threes.data())}};
    WEFT_ASSIGN_OR_RETURN(const auto norms, pair.groups.ClipGradNorms({&all, 1}, NormType::kTwo, external));
    EXPECT_DOUBLE_EQ(norms.front().norm, std::sqrt(4 * 9.0 + 6 * 4.0));
    pair.ExpectGradients(2.0F, 2.0F);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
