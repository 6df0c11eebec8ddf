// Control of a sharded model by a training loop: prefetches, unshard, reshard, reductions, waits.
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/support/tiny_llama.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"
#include "weft/sharding/state_dict.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using State = ParamGroup::State;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

std::vector<State> States(const ShardedModel& model) {
  std::vector<State> states;
  for (const auto& group : model.sharded_groups().groups()) states.push_back(group->state());
  return states;
}

// Runs a pass and returns the states of all groups at the start of the layer's forward (or backward).
std::vector<State> StatesInside(ToyNet& net, ShardedModel& model, size_t layer, bool backward, int rank) {
  std::vector<State> seen;
  const auto record = [&](Module&, Invocation&, Tensors&) {
    seen = States(model);
    return absl::OkStatus();
  };
  Module& module = net.layer(layer);
  const auto hook = backward ? module.AddBackwardPreHook(record) : module.AddForwardPreHook(record);
  EXPECT_OK(ToyPassOf(net, model, rank));
  model.ZeroGradients();
  module.RemoveHook(hook);
  return seen;
}

TEST(ShardedModel, PrefetchesTheListedModules) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(model.SetModulesToForwardPrefetch(net.layer(0), {&net.layer(2), &net.layer(1)}));
    WEFT_RETURN_IF_ERROR(model.SetModulesToForwardPrefetch(net, {}));
    WEFT_RETURN_IF_ERROR(model.SetModulesToBackwardPrefetch(net.layer(2), {&net.layer(0)}));
    const auto forward = StatesInside(net, model, 0, /*backward=*/false, rank);
    EXPECT_EQ(forward,
              (std::vector{State::kUnsharded, State::kUnsharded, State::kUnsharding, State::kUnsharding}));
    const auto backward = StatesInside(net, model, 2, /*backward=*/true, rank);
    EXPECT_EQ(backward,
              (std::vector{State::kUnsharded, State::kUnsharding, State::kUnsharded, State::kUnsharded}));
    return absl::OkStatus();
  });
}

TEST(ShardedModel, RefusesPrefetchListsWithModulesWithoutAGroup) {
  WithToyModel(1, {}, [](ToyNet& net, ShardedModel& model, int) -> absl::Status {
    ToyNet other({6, 6});
    EXPECT_THAT(model.SetModulesToForwardPrefetch(net.layer(0), {&net.layer(1), &other}),
                StatusIs(kInvalid, AllOf(HasSubstr("module 'net' is no parameter group"),
                                         HasSubstr("blocks given to FullyShard"))));
    EXPECT_THAT(model.SetModulesToBackwardPrefetch(other.layer(0), {}),
                StatusIs(kInvalid, HasSubstr("module 'layers.0'")));
    EXPECT_THAT(model.Unshard(other), StatusIs(kInvalid, HasSubstr("no parameter group")));
    EXPECT_THAT(model.Reshard(other), StatusIs(kInvalid, HasSubstr("no parameter group")));
    return absl::OkStatus();
  });
}

// Reduced gradients of this rank after a pass over generated tokens, and the all-gathers of the pass.
struct LlamaPass {
  std::vector<float> gradients;
  int64_t all_gathers;
};
absl::StatusOr<LlamaPass> PassOf(LlamaModel& net, ShardedModel& model, int rank) {
  const int64_t before = model.counters().all_gathers;
  Tensor ids = Tensor::Empty(DType::kI32, {1, 8});
  for (int i = 0; i < 8; ++i) ids.As<int32_t>()[i] = (3 * i + rank) % TinyLlama().vocab_size;
  Invocation invocation;
  WEFT_RETURN_IF_ERROR(net.Forward(invocation, {ids, ids}).status());
  Tensor one = Tensor::Empty(DType::kF32, {});
  *one.As<float>() = 1.0F;
  WEFT_RETURN_IF_ERROR(net.Backward(invocation, {one}).status());
  LlamaPass pass;
  for (const ShardView& shard : model.Shards()) {
    pass.gradients.insert(pass.gradients.end(), shard.grad, shard.grad + shard.elements());
  }
  pass.all_gathers = model.counters().all_gathers - before;
  model.ZeroGradients();
  return pass;
}

TEST(ShardedModel, LeavesAGroupShardedInBackwardWhenTold) {
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    WEFT_ASSIGN_OR_RETURN(const auto net, LlamaModel::Create(TinyLlama()));
    // Embedding, layers, norm and head are one group each. The group of the root is empty.
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(*net, net->children(), mesh, *engine.engine,
                                                       PrivateImages(), LoadInitialValues(kToySeed)));
    WEFT_RETURN_IF_ERROR(PassOf(*net, *model, bootstrap.rank()).status());
    WEFT_ASSIGN_OR_RETURN(const LlamaPass gathered, PassOf(*net, *model, bootstrap.rank()));
    WEFT_RETURN_IF_ERROR(model->SetUnshardInBackward(*net->children()[0], false));
    WEFT_ASSIGN_OR_RETURN(const LlamaPass left_sharded, PassOf(*net, *model, bootstrap.rank()));
    EXPECT_EQ(left_sharded.gradients, gathered.gradients);
    EXPECT_EQ(left_sharded.all_gathers, gathered.all_gathers - 1);
    WEFT_RETURN_IF_ERROR(model->SetUnshardInBackward(*net->children()[0], true));
    WEFT_ASSIGN_OR_RETURN(const LlamaPass gathered_again, PassOf(*net, *model, bootstrap.rank()));
    EXPECT_EQ(gathered_again.all_gathers, gathered.all_gathers);
    EXPECT_THAT(model->SetUnshardInBackward(ToyNet({6, 6}), false),
                StatusIs(kInvalid, HasSubstr("no parameter group")));
    return absl::OkStatus();
  });
}

int64_t GathersOfAPass(ToyNet& net, ShardedModel& model, int rank) {
  const int64_t before = model.counters().all_gathers;
  EXPECT_OK(ToyPassOf(net, model, rank));
  EXPECT_OK(ToyUpdate(model, 0.0, nullptr));
  return model.counters().all_gathers - before;
}

TEST(ShardedModel, KeepsBlocksUnshardedAfterForwardWhenTold) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3 + 1);  // Two blocks stay unsharded for backward.
    model.SetReshardAfterForward(false);
    EXPECT_EQ(GathersOfAPass(net, model, rank), 3 + 1);
    model.SetReshardAfterForward(true);
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3 + 1);
    return absl::OkStatus();
  });
}

TEST(ShardedModel, KeepsGroupsUnshardedAfterBackwardUntilGradientsAreZeroed) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    model.SetRequiresGradientSync(false);
    model.SetReshardAfterForward(false);
    model.SetReshardAfterBackward(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_THAT(States(model), ::testing::Each(State::kUnsharded));
    const int64_t before = model.counters().all_gathers;
    model.SetRequiresGradientSync(true);
    model.SetReshardAfterBackward(true);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().all_gathers, before);
    EXPECT_THAT(States(model), ::testing::Each(State::kSharded));
    model.ZeroGradients();

    model.SetReshardAfterBackward(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_THAT(States(model), ::testing::Each(State::kUnsharded));
    model.ZeroGradients();
    EXPECT_THAT(States(model), ::testing::Each(State::kSharded));
    return absl::OkStatus();
  });
}

TEST(ShardedModel, SetsFlagsOfOneModuleOrOfAllBelowIt) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3 + 1);  // Two blocks stay unsharded for backward.
    WEFT_RETURN_IF_ERROR(model.SetReshardAfterForward(net.layer(0), false));
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3);
    WEFT_RETURN_IF_ERROR(model.SetReshardAfterForward(net, true));  // Of the root and the layers.
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3 + 2);
    WEFT_RETURN_IF_ERROR(model.SetReshardAfterForward(net, false, /*recurse=*/false));
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3 + 1);

    const int64_t before = model.counters().reduce_scatters;
    WEFT_RETURN_IF_ERROR(model.SetRequiresGradientSync(net, false));
    WEFT_RETURN_IF_ERROR(model.SetRequiresGradientSync(net.layer(2), true));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().reduce_scatters - before, 1);
    EXPECT_THAT(model.CheckGradientsReduced(), StatusIs(kPrecondition, HasSubstr("unreduced gradients")));
    WEFT_RETURN_IF_ERROR(model.SetRequiresGradientSync(net, true));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(model.counters().reduce_scatters - before, 1 + 4);
    EXPECT_OK(model.CheckGradientsReduced());
    model.ZeroGradients();

    WEFT_RETURN_IF_ERROR(model.SetReshardAfterBackward(net.layer(2), false));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_EQ(States(model),
              (std::vector{State::kSharded, State::kSharded, State::kSharded, State::kUnsharded}));
    model.ZeroGradients();
    ToyNet other({6, 6});
    EXPECT_THAT(model.SetReshardAfterBackward(other, false),
                StatusIs(kInvalid, HasSubstr("no parameter group")));
    return absl::OkStatus();
  });
}

// The reduced gradients of this rank's shards, end to end.
std::vector<float> Gradients(const ShardedModel& model) {
  std::vector<float> values;
  for (const ShardView& shard : model.Shards()) {
    if (shard.grad != nullptr) values.insert(values.end(), shard.grad, shard.grad + shard.elements());
  }
  return values;
}

TEST(ShardedModel, ReducesKeptGradientsOnDemand) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
    ToyNet net({6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                       LoadInitialValues(kToySeed)));
    const auto set_nothing = [&] {};
    const auto keep_full = [&] { model->SetRequiresGradientSync(false); };
    const auto keep_partial = [&] { model->SetRequiresAllReduce(false); };
    const auto do_not_wait = [&] { model->SetIsLastBackward(false); };
    const auto gradients = [&](const std::function<void()>& set) -> absl::StatusOr<std::vector<float>> {
      set();
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
      WEFT_RETURN_IF_ERROR(model->ReduceGradients());
      WEFT_RETURN_IF_ERROR(model->CheckGradientsReduced());
      std::vector<float> values = Gradients(*model);
      model->SetRequiresGradientSync(true);
      model->SetRequiresAllReduce(true);
      model->SetIsLastBackward(true);
      model->ZeroGradients();
      return values;
    };
    for (const bool skips : {false, true}) {
      if (skips && bootstrap.rank() == 1) net.SetOrder({1});
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> expected, gradients(set_nothing));
      EXPECT_FALSE(expected.empty());
      EXPECT_EQ(gradients(keep_full), absl::StatusOr<std::vector<float>>(expected));
      EXPECT_EQ(gradients(keep_partial), absl::StatusOr<std::vector<float>>(expected));
      EXPECT_EQ(gradients(do_not_wait), absl::StatusOr<std::vector<float>>(expected));
    }
    // Nothing to reduce: only the agreements.
    const int64_t before = model->counters().reduce_scatters;
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
    WEFT_RETURN_IF_ERROR(model->ReduceGradients());
    EXPECT_EQ(model->counters().reduce_scatters - before, 3);
    return ToyUpdate(*model, 1.0, nullptr);
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

TEST(ShardedModel, TrainsAThawedBlockFromItsFirstStep) {
  // The block is frozen in the first and in the last of three steps.
  constexpr int kSteps = 3;
  const auto thaw = [](ToyNet& net, int step) {
    for (const auto& parameter : net.layer(1).parameters()) parameter->requires_grad = step == 1;
  };
  ToyNet alone({6, 6, 6, 6});
  MaterializedParameters memory(alone, kToySeed, DType::kF32, DType::kF32);
  for (int step = 0; step < kSteps; ++step) {
    thaw(alone, step);
    ASSERT_OK(ToyPass(alone, 0, 1, step, 0, 1));
    for (const auto& parameter : alone.AllParameters()) {
      for (int64_t i = 0; parameter->requires_grad && i < parameter->elements(); ++i) {
        parameter->data.As<float>()[i] -= kToyLearningRate * parameter->grad.As<float>()[i];
      }
    }
    memory.ClearGradients();
  }
  std::vector<float> expected;
  for (const auto& parameter : alone.AllParameters()) {
    const std::vector<float> values = ReadValues(parameter->data);
    expected.insert(expected.end(), values.begin(), values.end());
  }
  ShardingPolicy policy;
  policy.trained_later = [](const Parameter&) { return true; };
  RunRanks(NodeMap::OneNode(3), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 3));
    ToyNet net({6, 6, 6, 6});
    thaw(net, 0);
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                       LoadInitialValues(kToySeed)));
    for (int step = 0; step < kSteps; ++step) {
      thaw(net, step);
      const int64_t before = model->counters().reduce_scatters;
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank(), step));
      EXPECT_EQ(model->counters().reduce_scatters - before, step == 1 ? 4 : 3);
      WEFT_RETURN_IF_ERROR(ToyUpdate(*model, 0.0, nullptr));
    }
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(*model));
    EXPECT_THAT(weights, ::testing::Pointwise(::testing::FloatNear(1e-5F), expected));
    return absl::OkStatus();
  });
}

// As FSDP2's fully_shard of a module with another mesh.
TEST(ShardedModel, ShardsABlockOverAMeshOfItsOwn) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh whole, MakeToyMesh(1, 4));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh halves, MakeToyMesh(2, 2));
    const auto train = [&](bool own_mesh) -> absl::StatusOr<std::map<std::string, std::vector<float>>> {
      ToyNet net({6, 6, 6, 6});
      std::unique_ptr<ShardedModel> block;
      ShardingPolicy policy;
      if (own_mesh) {
        WEFT_ASSIGN_OR_RETURN(
            block, FullyShard(net.layer(1), {}, halves, *engine.engine, {}, LoadInitialValues(kToySeed)));
        block->SetIsLastBackward(false);  // Its reductions go on while the layer before it computes.
        policy.ignored = [](const Parameter& parameter) { return parameter.name.starts_with("layers.1"); };
      }
      WEFT_ASSIGN_OR_RETURN(const auto model,
                            FullyShard(net, {&net.layer(0), &net.layer(2)}, whole, *engine.engine, policy,
                                       LoadInitialValues(kToySeed)));
      for (int step = 0; step < 3; ++step) {
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), 4, step, 0, 1));
        if (block != nullptr) {
          WEFT_RETURN_IF_ERROR(block->ReduceGradients());
          WEFT_RETURN_IF_ERROR(ToyUpdate(*block, 0.0, nullptr));
        }
        WEFT_RETURN_IF_ERROR(ToyUpdate(*model, 0.0, nullptr));
      }
      std::map<std::string, std::vector<float>> weights;
      for (ShardedModel* part : {block.get(), model.get()}) {
        if (part == nullptr) continue;
        WEFT_RETURN_IF_ERROR(GatherFullState(*part, part->Shards(), StateTarget::kEveryRank,
                                             [&](const Parameter& parameter, absl::Span<const float> values) {
                                               weights[parameter.name] = {values.begin(), values.end()};
                                               return absl::OkStatus();
                                             }));
      }
      return weights;
    };
    WEFT_ASSIGN_OR_RETURN(const auto expected, train(/*own_mesh=*/false));
    WEFT_ASSIGN_OR_RETURN(const auto weights, train(/*own_mesh=*/true));
    EXPECT_EQ(weights.size(), 1 + 2 * 3);
    EXPECT_EQ(weights, expected);
    return absl::OkStatus();
  });
}

TEST(ShardedModel, WaitsForReductionsOnlyInTheLastBackward) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;  // Nothing to agree on in the last backward.
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    // Without a hook, a finished reduction may be delivered before FinishBackward.
    for (const auto& group : model.sharded_groups().groups()) {
      group->SetGradientHook([](const std::string&, const TensorView&) { return absl::OkStatus(); });
    }
    model.SetIsLastBackward(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    EXPECT_FALSE(model.sharded_groups().groups()[0]->has_reduced_gradients());
    EXPECT_THAT(model.ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("reductions under way")));
    WEFT_RETURN_IF_ERROR(model.sharded_groups().context().FinishBackward());
    EXPECT_TRUE(model.sharded_groups().groups()[0]->has_reduced_gradients());
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(ShardedModel, AllReducesOnlyWhenTold) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
    ToyNet net({6, 6, 6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                       LoadInitialValues(kToySeed)));
    model->SetRequiresAllReduce(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
    EXPECT_EQ(model->counters().reduce_scatters, 3);
    EXPECT_EQ(model->counters().all_reduces, 0);
    EXPECT_THAT(model->ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("group 'net'")));
    model->SetRequiresAllReduce(true);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
    EXPECT_EQ(model->counters().reduce_scatters, 6);
    EXPECT_EQ(model->counters().all_reduces, 3);
    model->ZeroGradients();
    WEFT_RETURN_IF_ERROR(model->SetRequiresAllReduce(net.layer(0), false));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
    EXPECT_EQ(model->counters().all_reduces, 3 + 2);
    EXPECT_THAT(model->ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("group 'layers.0'")));
    WEFT_RETURN_IF_ERROR(model->ReduceGradients());
    return ToyUpdate(*model, 1.0, nullptr);
  });
}

TEST(ShardedModel, TrainsTheSameWithOtherForwardsBetweenSteps) {
  const auto train = [](bool other_forwards, bool reshard) {
    std::vector<float> weights;
    ShardingPolicy policy;
    policy.reshard_after_forward = reshard;
    WithToyModel(2, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      for (int step = 0; step < 3; ++step) {
        if (other_forwards) {
          Invocation evaluation(/*gradients=*/false);
          WEFT_RETURN_IF_ERROR(net.Forward(evaluation, {ToyInputs(0, 3, 6)}).status());
          Invocation abandoned;  // Saves activations, but no backward follows.
          WEFT_RETURN_IF_ERROR(net.Forward(abandoned, {ToyInputs(7, 3, 6)}).status());
        }
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank, step));
        WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
      }
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> result, ToyWeights(model));
      if (rank == 0) weights = result;
      return absl::OkStatus();
    });
    return weights;
  };
  const std::vector<float> expected = train(/*other_forwards=*/false, /*reshard=*/true);
  for (const bool reshard : {true, false}) EXPECT_EQ(train(/*other_forwards=*/true, reshard), expected);
}

TEST(ShardedModel, LetsShardsBeWrittenAgainAfterBeginWriting) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const NodeMap& nodes : {NodeMap::OneNode(3), NodeMap{{0, 0, 1}}, NodeMap{{0, 1, 2}}}) {
      ShardingPolicy policy;
      policy.param_dtype = dtype;
      WithToyModel(nodes, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
        for (const float value : {3.0F, 5.0F}) {
          WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
          WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
          WEFT_RETURN_IF_ERROR(model.BeginWriting());
          for (const auto& group : model.sharded_groups().groups())
            EXPECT_EQ(group->state(), ParamGroup::State::kSharded);
          for (const ShardView& shard : model.Shards()) {
            std::fill(shard.data, shard.data + shard.elements(), value);
          }
          WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
          EXPECT_THAT(weights, ::testing::Each(value));
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(ShardedModel, SupportsSeveralInvocationsInFlight) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int) -> absl::Status {
    const auto gradients = [&](bool interleaved) -> absl::StatusOr<std::vector<float>> {
      Invocation one;
      Invocation two;
      const auto backward = [&net](Invocation& invocation, const Tensors& outputs) {
        return net.Backward(invocation, {ToyLossGradient(outputs[0], 1.0F)}).status();
      };
      model.SetRequiresGradientSync(false);
      WEFT_ASSIGN_OR_RETURN(const Tensors first, net.Forward(one, {ToyInputs(0, 3, 6)}));
      if (!interleaved) WEFT_RETURN_IF_ERROR(backward(one, first));
      WEFT_ASSIGN_OR_RETURN(const Tensors second, net.Forward(two, {ToyInputs(3, 3, 6)}));
      if (interleaved) WEFT_RETURN_IF_ERROR(backward(one, first));
      model.SetRequiresGradientSync(true);
      WEFT_RETURN_IF_ERROR(backward(two, second));
      std::vector<float> values;
      for (const ShardView& shard : model.Shards()) {
        values.insert(values.end(), shard.grad, shard.grad + shard.elements());
      }
      model.ZeroGradients();
      return values;
    };
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> sequential, gradients(/*interleaved=*/false));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> interleaved, gradients(/*interleaved=*/true));
    EXPECT_EQ(sequential, interleaved);
    return absl::OkStatus();
  });
}

TEST(ShardedModel, LeavesIgnoredParametersToTheCaller) {
  ShardingPolicy policy;
  policy.ignored = [](const Parameter& parameter) { return parameter.name == "net.gain"; };
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    ToyNet net({6, 6});
    Parameter& gain = *net.parameters()[0];
    std::vector<float> values(6, 1.0F);
    std::vector<float> gradient(6, 0.0F);
    gain.data = TensorView::Contiguous(values.data(), DType::kF32, {6});
    gain.grad = TensorView::Contiguous(gradient.data(), DType::kF32, {6});
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                       LoadInitialValues(kToySeed)));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, *model, bootstrap.rank()));
    EXPECT_EQ(gain.data.data, values.data());
    EXPECT_THAT(values, ::testing::Each(1.0F));
    EXPECT_THAT(gradient, ::testing::Contains(::testing::Ne(0.0F)));  // Of this rank alone.
    for (const ShardView& shard : model->Shards()) EXPECT_NE(shard.parameter, &gain);
    EXPECT_TRUE(model->sharded_groups().groups()[0]->parameters().empty());
    return ToyUpdate(*model, 1.0, nullptr);
  });
}

TEST(ShardedModel, UnshardsAModuleBeforeItsForward) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(1)));
    EXPECT_THAT(model.Reshard(net.layer(1)), StatusIs(kPrecondition, HasSubstr("call WaitUnshard before")));
    WEFT_RETURN_IF_ERROR(handle.Wait());
    EXPECT_NE(net.layer(1).weight()->data.data, nullptr);
    EXPECT_THAT(handle.Wait(), StatusIs(kPrecondition, HasSubstr("'layers.1' was waited for already")));
    WEFT_RETURN_IF_ERROR(model.Reshard(net.layer(1)));
    EXPECT_EQ(net.layer(1).weight()->data.data, nullptr);
    // The next forward uses an unshard that was not waited for.
    WEFT_RETURN_IF_ERROR(model.Unshard(net.layer(1)).status());
    EXPECT_EQ(GathersOfAPass(net, model, rank), 1 + 3);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
