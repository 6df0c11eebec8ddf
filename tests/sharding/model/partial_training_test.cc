// Models of which a part trains apart: frozen for some steps, over a mesh of its own, or by the caller.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "weft/nn/materialize.h"
#include "weft/sharding/state_dict.h"

namespace weft::testing {
namespace {

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
      WEFT_RETURN_IF_ERROR(ToyUpdate(*model, kNoClipping, nullptr));
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
          WEFT_RETURN_IF_ERROR(ToyUpdate(*block, kNoClipping, nullptr));
        }
        WEFT_RETURN_IF_ERROR(ToyUpdate(*model, kNoClipping, nullptr));
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
    EXPECT_THAT(gradient, ::testing::Contains(::testing::Ne(0.0F)));  // That of this rank alone.
    for (const ShardView& shard : model->Shards()) EXPECT_NE(shard.parameter, &gain);
    EXPECT_TRUE(PartsOf(*model).groups[0]->parameters().empty());
    return ToyUpdate(*model, 1.0, nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
