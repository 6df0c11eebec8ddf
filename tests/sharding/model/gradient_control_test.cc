// Control of reductions by a training loop: kept gradients, reductions on demand, divisors, waits.
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/sharding/support/status_codes.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// The reduced gradients of this rank's shards, end to end.
std::vector<float> Gradients(const ShardedModel& model) {
  std::vector<float> values;
  for (const ShardView& shard : model.Shards()) {
    if (shard.grad != nullptr) values.insert(values.end(), shard.grad, shard.grad + shard.elements());
  }
  return values;
}

// Runs `body(net, model, rank)` on 2 replicas of 2 shards.
template <typename Body>
void OnTwoReplicas(const NodeMap& nodes, Body body) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
    ToyNet net({6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                       LoadInitialValues(kToySeed)));
    return body(net, *model, bootstrap.rank());
  });
}

TEST(ShardedModel, ReducesKeptGradientsOnDemand) {
  OnTwoReplicas(NodeMap::RanksPerNode(4, 2), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    const auto set_nothing = [&] {};
    const auto keep_full = [&] { model.SetRequiresGradientSync(false); };
    const auto keep_partial = [&] { model.SetRequiresAllReduce(false); };
    const auto do_not_wait = [&] { model.SetIsLastBackward(false); };
    const auto gradients = [&](const std::function<void()>& set) -> absl::StatusOr<std::vector<float>> {
      set();
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
      WEFT_RETURN_IF_ERROR(model.ReduceGradients());
      WEFT_RETURN_IF_ERROR(model.CheckGradientsReduced());
      std::vector<float> values = Gradients(model);
      model.SetRequiresGradientSync(true);
      model.SetRequiresAllReduce(true);
      model.SetIsLastBackward(true);
      model.ZeroGradients();
      return values;
    };
    for (const bool skips : {false, true}) {
      if (skips && rank == 1) net.SetOrder({1});
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> expected, gradients(set_nothing));
      EXPECT_FALSE(expected.empty());
      EXPECT_EQ(gradients(keep_full), absl::StatusOr<std::vector<float>>(expected));
      EXPECT_EQ(gradients(keep_partial), absl::StatusOr<std::vector<float>>(expected));
      EXPECT_EQ(gradients(do_not_wait), absl::StatusOr<std::vector<float>>(expected));
    }
    // A layer that no rank calls has no gradient, however the others are reduced.
    net.SetOrder({1});
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> expected, gradients(set_nothing));
    EXPECT_EQ(gradients(keep_full), absl::StatusOr<std::vector<float>>(expected));
    EXPECT_EQ(gradients(keep_partial), absl::StatusOr<std::vector<float>>(expected));
    EXPECT_EQ(gradients(do_not_wait), absl::StatusOr<std::vector<float>>(expected));
    // Nothing to reduce: only the agreements.
    const int64_t before = model.counters().reduce_scatters;
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(model.ReduceGradients());
    EXPECT_EQ(model.counters().reduce_scatters - before, 3);
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(ShardedModel, DividesTheGradientsOfOneModule) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    // The sums of the gradients of the layer, and of all other parameters.
    const auto sums = [&]() -> std::pair<double, double> {
      std::pair<double, double> found;
      EXPECT_OK(ToyPassOf(net, model, rank));
      for (const ShardView& shard : model.Shards()) {
        double& sum = shard.parameter->name.starts_with("layers.1") ? found.first : found.second;
        for (int64_t i = 0; i < shard.elements(); ++i) sum += std::abs(shard.grad[i]);
      }
      model.ZeroGradients();
      return found;
    };
    const auto [layer, rest] = sums();
    WEFT_RETURN_IF_ERROR(model.SetGradientDivideFactor(net.layer(1), 4.0));
    EXPECT_EQ(sums(), std::pair(layer / 4, rest));
    EXPECT_THAT(model.SetGradientDivideFactor(net.layer(1), 0.0),
                StatusIs(kInvalid, HasSubstr("gradient_divide_factor is 0: it must be a positive number")));
    EXPECT_THAT(model.SetGradientDivideFactor(ToyNet({6, 6}), 2.0),
                StatusIs(kInvalid, HasSubstr("no parameter group")));
    return absl::OkStatus();
  });
}

TEST(ShardedModel, RefusesToReduceOnDemandInsideOfAPass) {
  WithToyModel(1, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    absl::Status reduced;
    const auto hook = net.layer(1).AddForwardPreHook([&](Module&, Invocation&, Tensors&) {
      reduced = model.ReduceGradients();
      return absl::OkStatus();
    });
    EXPECT_THAT(ToyPassOf(net, model, rank), StatusIs(kPrecondition, HasSubstr("inside of a pass")));
    EXPECT_THAT(reduced, StatusIs(kPrecondition, HasSubstr("inside of a pass: do so after backward")));
    net.layer(1).RemoveHook(hook);
    return absl::OkStatus();
  });
}

TEST(ShardedModel, WaitsForReductionsOnlyInTheLastBackward) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;  // Nothing to agree on in the last backward.
  const auto all = [](const Parameter&) { return true; };
  const auto is_under_way = StatusIs(kPrecondition, HasSubstr("reductions under way"));
  for (const int ranks : {1, 2}) {
    // Without a hook, a finished reduction may be delivered before FinishBackward, with one rank always.
    for (const bool hooked : {false, true}) {
      WithToyModel(ranks, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
        const ParamGroup& group = *PartsOf(model).groups[0];
        if (hooked) {
          for (const auto& each : PartsOf(model).groups)
            each->SetGradientHook([](const std::string&, const TensorView&) { return absl::OkStatus(); });
        }
        model.SetIsLastBackward(false);
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
        EXPECT_FALSE(group.has_reduced_gradients());
        EXPECT_THAT(model.ClipGradNorm(1.0), is_under_way);
        EXPECT_THAT(model.sharded_groups().ForgetReducedGradients(all), is_under_way);
        WEFT_RETURN_IF_ERROR(PartsOf(model).context.FinishBackward());
        EXPECT_TRUE(group.has_reduced_gradients());
        return ToyUpdate(model, 1.0, nullptr);
      });
    }
  }
}

TEST(ShardedModel, AllReducesOnlyWhenTold) {
  OnTwoReplicas(NodeMap::OneNode(4), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    model.SetRequiresAllReduce(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().reduce_scatters, 3);
    EXPECT_EQ(model.counters().all_reduces, 0);
    EXPECT_THAT(model.ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("group 'net'")));
    model.SetRequiresAllReduce(true);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().reduce_scatters, 6);
    EXPECT_EQ(model.counters().all_reduces, 3);
    model.ZeroGradients();
    WEFT_RETURN_IF_ERROR(model.SetRequiresAllReduce(net.layer(0), false));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().all_reduces, 3 + 2);
    EXPECT_THAT(model.ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("group 'layers.0'")));
    WEFT_RETURN_IF_ERROR(model.ReduceGradients());
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(ShardedModel, ReducesNothingWithoutABackward) {
  for (const UnusedGradients unused : {UnusedGradients::kNone, UnusedGradients::kZero}) {
    ShardingPolicy policy;
    policy.unused_gradients = unused;
    WithToyModel(2, policy, [](ToyNet&, ShardedModel& model, int) -> absl::Status {
      WEFT_RETURN_IF_ERROR(model.ReduceGradients());
      EXPECT_THAT(model.CheckGradientsReduced(), StatusIs(kPrecondition, HasSubstr("run backward")));
      return absl::OkStatus();
    });
  }
}

TEST(ShardedModel, ReducesNothingThatWasUpdatedInBackward) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    const auto nothing = [](absl::Span<const ShardView>) { return absl::OkStatus(); };
    WEFT_RETURN_IF_ERROR(model.BeginUpdatesInBackward(nothing, {}));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(model.ReduceGradients());
    EXPECT_THAT(model.CheckGradientsReduced(), StatusIs(kPrecondition, HasSubstr("run backward")));
    return model.FinishUpdatesInBackward().status();
  });
}

// Only rank 0 calls the block in the last microbatch, whose gradient stays unreduced.
TEST(ShardedModel, HoldsGradientsBackOnAllRanksWhileOneHasAnUnreducedOne) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(model.SetRequiresGradientSync(net.layer(1), false));
    if (rank == 1) net.SetOrder({0, 2});
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    const auto is_refused = StatusIs(kPrecondition, HasSubstr("unreduced gradients"));
    EXPECT_THAT(model.CheckGradientsReduced(), is_refused);
    EXPECT_THAT(model.ClipGradNorm(1.0), is_refused);
    WEFT_RETURN_IF_ERROR(model.ReduceGradients());
    return ToyUpdate(model, 1.0, nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
