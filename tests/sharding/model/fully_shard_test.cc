// Hooks of a sharded model: unusual models, misuse, and errors within a pass.
#include "weft/sharding/fully_shard.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/sharding/support/status_codes.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

absl::Status Pass(ToyNet& net, int rank, int step) { return ToyPass(net, rank, 2, step, 0, 1); }

TEST(FullyShard, LeavesNoParameterWithDataBetweenPasses) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    for (int step = 0; step < 2; ++step) {
      for (const auto& parameter : net.AllParameters()) {
        EXPECT_EQ(parameter->data.data, nullptr);
        EXPECT_EQ(parameter->grad.data, nullptr);
      }
      WEFT_RETURN_IF_ERROR(Pass(net, rank, step));
      WEFT_RETURN_IF_ERROR(ToyUpdate(model, kNoClipping, nullptr));
    }
    return absl::OkStatus();
  });
}

TEST(FullyShard, FillsEveryShardFromTheLoaderAlone) {
  WithToyModel(3, {}, [](ToyNet& net, ShardedModel& model, int) -> absl::Status {
    std::vector<float> expected;
    for (const auto& parameter : net.AllParameters()) {
      std::vector<float> values(static_cast<size_t>(parameter->elements()));
      WEFT_RETURN_IF_ERROR(LoadInitialValues(kToySeed)(*parameter, 0, parameter->elements(), values.data()));
      expected.insert(expected.end(), values.begin(), values.end());
    }
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
    EXPECT_EQ(weights, expected);
    return absl::OkStatus();
  });
}

TEST(FullyShard, GivesModulesThatWereNotCalledZeroGradientsOnRequest) {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    net.SetOrder({0, 2});
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    for (const ShardView& shard : PartsOf(model).groups[2]->Shards()) {
      EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(0.0F));
    }
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(FullyShard, ExchangesNothingForBlocksOfWhichNoRankCallsAny) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    net.SetOrder({});
    for (int step = 0; step < 3; ++step) {
      const ShardingCounters before = model.counters();
      WEFT_RETURN_IF_ERROR(Pass(net, rank, step));
      const ShardingCounters after = model.counters();
      // The root. In the first step the ranks have not yet agreed on an order.
      if (step > 0) {
        EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, 1);
        EXPECT_EQ(after.all_gathers - before.all_gathers, 1);
      }
      for (const ShardView& shard : PartsOf(model).groups[2]->Shards()) {
        EXPECT_EQ(shard.grad, nullptr);
      }
      WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
    }
    return absl::OkStatus();
  });
}

TEST(FullyShard, ExchangesNoSumOfABlockThatNoRankCallsAnyMore) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    int step = 0;
    for (const std::vector<size_t>& order : std::vector<std::vector<size_t>>{{}, {}, {0, 1, 2}}) {
      net.SetOrder(order);
      WEFT_RETURN_IF_ERROR(Pass(net, rank, step++));
    }
    const auto sums = [&] {
      std::vector<float> values;
      for (const ShardView& shard : PartsOf(model).groups[2]->Shards()) {
        values.insert(values.end(), shard.grad, shard.grad + shard.elements());
      }
      return values;
    };
    const std::vector<float> expected = sums();
    net.SetOrder({});  // As the ranks have agreed in the first pass.
    for (; step < 5; ++step) {
      const int64_t before = model.counters().reduce_scatters;
      WEFT_RETURN_IF_ERROR(Pass(net, rank, step));
      EXPECT_EQ(model.counters().reduce_scatters - before, 1);
      EXPECT_EQ(sums(), expected);
    }
    return absl::OkStatus();
  });
}

TEST(FullyShard, ReducesABlockOnceIfItIsCalledTwice) {
  const auto gradients = [](std::vector<size_t> order, ShardedModel& model, ToyNet& net, int rank,
                            std::vector<float>& out) -> absl::Status {
    net.SetOrder(std::move(order));
    const int64_t before = model.counters().reduce_scatters;
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    EXPECT_EQ(model.counters().reduce_scatters - before, 4);
    for (const ShardView& shard : PartsOf(model).groups[2]->Shards())
      out.assign(shard.grad, shard.grad + shard.elements());
    model.ZeroGradients();
    return absl::OkStatus();
  };
  WithToyModel(2, {}, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    std::vector<float> once;
    std::vector<float> twice;
    WEFT_RETURN_IF_ERROR(gradients({0, 1, 2}, model, net, rank, once));
    WEFT_RETURN_IF_ERROR(gradients({0, 1, 1, 2}, model, net, rank, twice));
    EXPECT_NE(once, twice);
    WEFT_RETURN_IF_ERROR(gradients({0, 1, 1, 2}, model, net, rank, once));  // With the recorded order.
    EXPECT_EQ(once, twice);
    return absl::OkStatus();
  });
}

TEST(FullyShard, WorksIfAModelChangesItsOrder) {
  for (const int depth : {1, 2}) {
    ShardingPolicy policy;
    policy.prefetch_depth = depth;
    WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      int step = 0;
      for (const std::vector<size_t>& order :
           std::vector<std::vector<size_t>>{{0, 1, 2}, {0, 2}, {2, 1, 0}, {1}}) {
        net.SetOrder(order);
        WEFT_RETURN_IF_ERROR(Pass(net, rank, step++));
        for (const auto& group : PartsOf(model).groups)
          EXPECT_EQ(group->state(), ParamGroup::State::kSharded);
        WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
      }
      return absl::OkStatus();
    });
  }
}

TEST(FullyShard, KeepsNoImageAfterAForwardWithoutGradients) {
  ShardingPolicy policy;
  policy.reshard_after_forward = false;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int) -> absl::Status {
    Invocation invocation(/*gradients=*/false);
    WEFT_RETURN_IF_ERROR(net.Forward(invocation, {ToyInputs(0, 2, 6)}).status());
    for (const auto& group : PartsOf(model).groups) EXPECT_EQ(group->state(), ParamGroup::State::kSharded);
    EXPECT_EQ(model.peaks().gradient_bytes, 0);
    return absl::OkStatus();
  });
}

TEST(FullyShard, CostsWhatTheFormulasSayInAForwardWithoutGradients) {
  for (const auto& [layout, node_shared] : {std::pair{FlatKind::kContiguous, NodeShared::kOn},
                                            {FlatKind::kContiguous, NodeShared::kOff},
                                            {FlatKind::kRows, NodeShared::kOn},
                                            {FlatKind::kRows, NodeShared::kOff},
                                            {FlatKind::kPerParameter, NodeShared::kOff}}) {
    ShardingPolicy policy;
    policy.layout = layout;
    policy.node_shared = node_shared;
    policy.param_dtype = DType::kBF16;
    WithToyModel(3, policy, [&policy](ToyNet& net, ShardedModel& model, int) -> absl::Status {
      const auto forward = [&net] {
        Invocation invocation(/*gradients=*/false);
        return net.Forward(invocation, {ToyInputs(0, 2, 6)}).status();
      };
      WEFT_RETURN_IF_ERROR(forward());  // The first forward also agrees on the order.
      const EngineCounters engine = PartsOf(model).context.state().engine().counters();
      const ShardingCounters sharding = model.counters();
      WEFT_RETURN_IF_ERROR(forward());
      StepCosts expected;
      for (const auto& group : PartsOf(model).groups) {
        expected += ForwardCostsOfGroup(group->layout(), policy,
                                        {.shard_size = 3, .residency = model.residency().residency});
      }
      EXPECT_EQ(model.counters().all_gathers - sharding.all_gathers, expected.all_gathers);
      EXPECT_EQ(model.counters().copied_bytes - sharding.copied_bytes, expected.copied_bytes);
      EXPECT_EQ(PartsOf(model).context.state().engine().counters().all_gather_bytes - engine.all_gather_bytes,
                expected.all_gather_bytes);
      return absl::OkStatus();
    });
  }
}

TEST(FullyShard, AddsASecondReductionToTheFirst) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    const auto gradients = [&model] {
      std::vector<float> values;
      for (const ShardView& shard : model.Shards()) {
        values.insert(values.end(), shard.grad, shard.grad + shard.elements());
      }
      return values;
    };
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    const std::vector<float> once = gradients();
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    const std::vector<float> twice = gradients();
    for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i], 2 * once[i]);
    return absl::OkStatus();
  });
}

TEST(FullyShard, RefusesToClipWithoutReducedGradients) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    EXPECT_THAT(model.ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("no reduced gradients")));
    model.SetRequiresGradientSync(false);
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    EXPECT_THAT(model.ClipGradNorm(1.0), StatusIs(kPrecondition, HasSubstr("unreduced gradients")));
    return absl::OkStatus();
  });
}

TEST(FullyShard, ReportsANanGradientOnAllRanks) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    if (rank == 1) model.Shards().back().grad[0] = std::numeric_limits<float>::quiet_NaN();
    WEFT_ASSIGN_OR_RETURN(const GradientNorm norm, model.ClipGradNorm(1.0));
    EXPECT_EQ(norm.norm, std::numeric_limits<double>::infinity());
    EXPECT_EQ(norm.factor, 0.0);
    return absl::OkStatus();
  });
}

TEST(FullyShard, FailsOnAllRanksIfOneFailsAndWorksAgainAfterAReset) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 0));
    WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> before, ToyWeights(model));
    std::vector<float> storage(8);
    if (rank == 1) net.layer(1).weight()->data = TensorView::Contiguous(storage.data(), DType::kF32, {8});
    EXPECT_THAT(Pass(net, rank, 1), ::testing::Not(IsOk()));
    EXPECT_THAT(Pass(net, rank, 1), ::testing::Not(IsOk()));  // The model fails until it is reset.
    if (rank == 1) net.layer(1).weight()->data.data = nullptr;
    WEFT_RETURN_IF_ERROR(model.ResetAfterError());
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> after, ToyWeights(model));
    EXPECT_EQ(before, after);
    WEFT_RETURN_IF_ERROR(Pass(net, rank, 1));
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(FullyShard, RemovesItsHooksWhenDestroyed) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 1));
    ToyNet net({6, 6});
    WEFT_RETURN_IF_ERROR(
        FullyShard(net, net.blocks(), mesh, *engine.engine, {}, LoadInitialValues(kToySeed)).status());
    Invocation invocation;
    EXPECT_THAT(net.Forward(invocation, {ToyInputs(0, 1, 6)}), StatusIs(kPrecondition, HasSubstr("sharded")));
    return absl::OkStatus();
  });
}

TEST(FullyShard, RefusesMeshesThatDoNotFit) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    ToyNet net({6, 6});
    const auto shard = [&](std::vector<MeshAxis> axes, int size) {
      return FullyShard(net, net.blocks(), *DeviceMesh::Create(std::move(axes), size), *engine.engine, {},
                        LoadInitialValues(kToySeed));
    };
    EXPECT_THAT(shard({{"shard", 1}, {"replicate", 2}}, 2),
                StatusIs(kInvalid, HasSubstr("axis 'replicate'")));
    EXPECT_THAT(shard({{"context", 1}, {"shard", 2}}, 2), StatusIs(kInvalid, HasSubstr("axis 'shard'")));
    EXPECT_THAT(shard({{"pipeline", 2}}, 2), StatusIs(kInvalid, HasSubstr("axis 'pipeline'")));
    EXPECT_THAT(shard({{"shard", 4}}, 4),
                StatusIs(kInvalid, AllOf(HasSubstr("4 ranks"), HasSubstr("connects 2"))));
    EXPECT_OK(shard({{"shard", 2}}, 2));
    return absl::OkStatus();
  });
}

TEST(FullyShard, FailsOnAllRanksIfOneCannotLoad) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    ToyNet net({6, 6});
    const ShardLoader loader = [&bootstrap](const Parameter& parameter, int64_t, int64_t, float*) {
      return bootstrap.rank() == 1 ? absl::NotFoundError(parameter.name) : absl::OkStatus();
    };
    EXPECT_THAT(FullyShard(net, net.blocks(), mesh, *engine.engine, {}, loader),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("layers.0")));
    return absl::OkStatus();
  });
}

TEST(FullyShard, LeavesTheParametersTheirDataUntilAllRanksHaveLoadedAllGroups) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    ToyNet net({6, 6, 6});
    const auto shard = [&](const ShardLoader& loader) {
      return FullyShard(net, net.blocks(), mesh, *engine.engine, {}, loader);
    };
    std::vector<Tensor> storage;
    for (const auto& parameter : net.AllParameters()) {
      storage.push_back(Tensor::Empty(DType::kF32, parameter->shape));
      WEFT_RETURN_IF_ERROR(
          LoadInitialValues(kToySeed)(*parameter, 0, parameter->elements(), storage.back().As<float>()));
      parameter->data = storage.back().view();
    }
    Parameter& last = *net.layer(1).weight();
    const TensorView data = last.data;
    if (bootstrap.rank() == 1) last.data.data = nullptr;
    EXPECT_THAT(shard(LoadFromParameters()),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'layers.1.weight'")));
    last.data = data;
    std::vector<float> loaded;
    {
      WEFT_ASSIGN_OR_RETURN(const auto model, shard(LoadFromParameters()));
      for (const auto& parameter : net.AllParameters()) EXPECT_EQ(parameter->data.data, nullptr);
      WEFT_ASSIGN_OR_RETURN(loaded, ToyWeights(*model));
    }
    WEFT_ASSIGN_OR_RETURN(const auto model, shard(LoadInitialValues(kToySeed)));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> initial, ToyWeights(*model));
    EXPECT_EQ(loaded, initial);
    return absl::OkStatus();
  });
}

// Models of an engine share its lanes.
TEST(FullyShard, TwentyModelsComeAndGoOnOneEngine) {
  for (const NodeMap& nodes : NodeMapsOf(4)) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
      std::vector<float> first;
      for (int i = 0; i < 20; ++i) {
        ToyNet net({6, 6, 6, 6});
        WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, {},
                                                           LoadInitialValues(kToySeed)));
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
        WEFT_RETURN_IF_ERROR(ToyUpdate(*model, kNoClipping, nullptr));
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(*model));
        if (first.empty()) first = weights;
        EXPECT_EQ(weights, first);
      }
      return absl::OkStatus();
    });
  }
}

// As a generator and a discriminator: passes of two models in turns, on the same lanes.
TEST(FullyShard, TwoModelsTrainInTurnsAsEachAlone) {
  for (const NodeMap& nodes : NodeMapsOf(4)) {
    RunRanks(nodes, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
      const auto shard = [&](ToyNet& net) {
        return FullyShard(net, net.blocks(), mesh, *engine.engine, {}, LoadInitialValues(kToySeed));
      };
      const auto step = [&](ToyNet& net, ShardedModel& model, int number) -> absl::Status {
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), number, 0, 1));
        return ToyUpdate(model, kNoClipping, nullptr);
      };
      ToyNet one({6, 6, 6, 6});
      ToyNet other({6, 6, 6, 6});
      ToyNet alone({6, 6, 6, 6});
      WEFT_ASSIGN_OR_RETURN(const auto model_one, shard(one));
      WEFT_ASSIGN_OR_RETURN(const auto model_other, shard(other));
      WEFT_ASSIGN_OR_RETURN(const auto model_alone, shard(alone));
      for (int number = 0; number < 3; ++number) {
        WEFT_RETURN_IF_ERROR(step(one, *model_one, number));
        WEFT_RETURN_IF_ERROR(step(other, *model_other, number));
      }
      for (int number = 0; number < 3; ++number) WEFT_RETURN_IF_ERROR(step(alone, *model_alone, number));
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> expected, ToyWeights(*model_alone));
      for (ShardedModel* model : {model_one.get(), model_other.get()}) {
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(*model));
        EXPECT_EQ(weights, expected);
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
