// Updates of a model in which a backward leaves out parameters, as torch.optim.AdamW does them after FSDP2's
// backward: what no rank used keeps its weight, its moments and its number of updates.
#include <map>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "weft/nn/materialize.h"
#include "weft/optim/sharded_adamw.h"

namespace weft::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr AdamWOptions kAdam = {.lr = 1e-2, .weight_decay = 0.5};

// A toy network with a parameter that no pass reads, in the group of its root.
class NetWithIdleParameter : public ToyNet {
 public:
  NetWithIdleParameter() : ToyNet({6, 6, 6, 6}) { AddParameter("idle", {5}, {}); }
};

// Layers that the passes of a step call.
using Orders = std::vector<std::vector<size_t>>;
const Orders kOrders = {{0, 1, 2}, {0, 2}, {0, 1, 2}, {2}};

std::vector<float> TrainOnOneRank() {
  NetWithIdleParameter net;
  MaterializedParameters memory(net, kToySeed, DType::kF32, DType::kF32);
  const auto shards = [&net] {
    std::vector<ShardView> views;
    for (const auto& parameter : net.AllParameters()) {
      const int64_t count = parameter->elements();
      views.push_back({parameter.get(),
                       {0, 0, 0, 1, count, count},
                       parameter->data.As<float>(),
                       parameter->grad_written ? parameter->grad.As<float>() : nullptr});
    }
    return views;
  };
  ShardedAdamW optimizer(shards(), kAdam);
  for (int step = 0; step < static_cast<int>(kOrders.size()); ++step) {
    net.SetOrder(kOrders[static_cast<size_t>(step)]);
    EXPECT_OK(ToyPass(net, 0, 1, step, 0, 1));
    EXPECT_OK(optimizer.Step(shards()));
    memory.ClearGradients();
  }
  std::vector<float> weights;
  for (const auto& parameter : net.AllParameters()) {
    const std::vector<float> values = ReadValues(parameter->data);
    weights.insert(weights.end(), values.begin(), values.end());
  }
  return weights;
}

// Runs `body(net, model, bootstrap)` on four ranks in two shard groups, in each way to share the optimizer.
template <typename Body>
void WithFourRanks(const ShardingPolicy& wanted, Body body) {
  for (const FlatKind layout : kFlatKinds) {
    for (const bool over_replicas : {false, true}) {
      SCOPED_TRACE(
          absl::StrCat("layout ", ToAbsl(Name(layout)), ", optimizer over replicas ", over_replicas));
      ShardingPolicy policy = wanted;
      policy.layout = layout;
      policy.shard_optimizer_over_replicas = over_replicas;
      RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
        WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
        NetWithIdleParameter net;
        WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                           LoadInitialValues(kToySeed)));
        return body(net, *model, bootstrap);
      });
    }
  }
}

TEST(UnusedParameters, AreSkippedLikeOnOneRank) {
  const std::vector<float> expected = TrainOnOneRank();
  WithFourRanks({}, [&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    ShardedAdamW optimizer(model.Shards(), kAdam);
    for (int step = 0; step < static_cast<int>(kOrders.size()); ++step) {
      net.SetOrder(kOrders[static_cast<size_t>(step)]);
      WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), step, 0, 1));
      WEFT_RETURN_IF_ERROR(optimizer.Step(model));
      model.ZeroGradients();
    }
    const std::vector<ShardView> shards = model.Shards();
    const std::vector<int64_t> steps = optimizer.StepsOfShards();
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string& name = shards[i].parameter->name;
      const int updates = name == "net.idle"           ? 0
                          : name.find("layers.1") == 0 ? 2
                          : name.find("layers.0") == 0 ? 3
                                                       : 4;
      EXPECT_EQ(steps[i], updates) << name;
    }
    EXPECT_EQ(optimizer.steps(), 4);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
    EXPECT_THAT(weights, Pointwise(::testing::FloatNear(1e-5F), expected));
    return absl::OkStatus();
  });
}

TEST(UnusedParameters, AreUsedIfOneRankUsesThem) {
  WithFourRanks({}, [&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    for (int step = 0; step < 2; ++step) {
      net.SetOrder(bootstrap.rank() == 3 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0, 2});
      WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), step, 0, 1));
      for (const ShardView& shard : model.Shards()) {
        EXPECT_EQ(shard.grad == nullptr, shard.parameter->name == "net.idle") << shard.parameter->name;
      }
      model.ZeroGradients();
    }
    return absl::OkStatus();
  });
}

TEST(UnusedParameters, AreUsedIfOneMicrobatchUsesThem) {
  for (const bool sync : {false, true}) {
    WithFourRanks({}, [&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
      for (const bool last : {false, true}) {
        model.SetRequiresGradientSync(sync || last);
        model.SetIsLastBackward(last);
        net.SetOrder(last ? std::vector<size_t>{0, 2} : std::vector<size_t>{1, 2});
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, last ? 1 : 0, 1));
        EXPECT_EQ(model.CheckGradientsReduced().ok(), last);
      }
      for (const ShardView& shard : model.Shards()) {
        EXPECT_EQ(shard.grad == nullptr, shard.parameter->name == "net.idle") << shard.parameter->name;
      }
      return absl::OkStatus();
    });
  }
}

TEST(UnusedParameters, HaveZeroGradientsAndDecayOnRequest) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  WithFourRanks(policy, [&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    ShardedAdamW optimizer(model.Shards(), kAdam);
    net.SetOrder({0, 2});
    WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
    std::vector<float> expected;
    for (const ShardView& shard : model.Shards()) {
      if (shard.parameter->name != "net.idle") continue;
      EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(0.0F));
      for (int64_t i = 0; i < shard.elements(); ++i)
        expected.push_back(shard.data[i] - shard.data[i] * 5e-3F);
    }
    WEFT_RETURN_IF_ERROR(optimizer.Step(model));
    std::vector<float> decayed;
    for (const ShardView& shard : model.Shards()) {
      if (shard.parameter->name == "net.idle")
        decayed.insert(decayed.end(), shard.data, shard.data + shard.elements());
    }
    EXPECT_THAT(decayed, Pointwise(::testing::FloatEq(), expected));
    return absl::OkStatus();
  });
}

TEST(OptimizerSteps, WithoutReducedGradientsFailAndAreNotCounted) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    ShardedAdamW optimizer(model.Shards(), {});
    EXPECT_THAT(optimizer.Step(model), StatusIs(kPrecondition, HasSubstr("has no reduced gradients")));
    model.SetRequiresGradientSync(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_THAT(optimizer.Step(model), StatusIs(kPrecondition, HasSubstr("has unreduced gradients")));
    EXPECT_EQ(optimizer.steps(), 0);
    model.SetRequiresGradientSync(true);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(optimizer.Step(model));
    EXPECT_EQ(optimizer.steps(), 1);
    return absl::OkStatus();
  });
}

// A parameter that was frozen when the optimizer was made has no moments before its first gradient.
TEST(OptimizerSteps, InBackwardUpdateAParameterThatIsTrainedLater) {
  std::map<bool, std::vector<float>> weights;
  for (const bool in_backward : {false, true}) {
    RunRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 1));
      ToyNet net({6, 6, 6, 6});
      Parameter& later = *net.layer(1).weight();
      later.requires_grad = false;
      ShardingPolicy policy;
      policy.unused_gradients = UnusedGradients::kZero;
      policy.trained_later = [&](const Parameter& parameter) { return &parameter == &later; };
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                         LoadInitialValues(kToySeed)));
      ShardedAdamW optimizer(model->Shards(), kAdam);
      later.requires_grad = true;
      if (in_backward) {
        WEFT_ASSIGN_OR_RETURN(ShardUpdate update, optimizer.BeginStepInBackward(*model, {{}}));
        WEFT_RETURN_IF_ERROR(model->BeginUpdatesInBackward(std::move(update), {}));
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
        WEFT_RETURN_IF_ERROR(model->FinishUpdatesInBackward().status());
      } else {
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
        WEFT_RETURN_IF_ERROR(optimizer.Step(*model));
      }
      WEFT_ASSIGN_OR_RETURN(weights[in_backward], ToyWeights(*model));
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(weights[true], weights[false]);
}

}  // namespace
}  // namespace weft::testing
