// Writes of shards at unusual times: the next forward computes with the values written last, or a call fails
// and names the remedy.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/support/test_timeout.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/materialize.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<float>> Outputs(ToyNet& net, bool gradients) {
  Invocation invocation(gradients);
  WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {ToyInputs(0, 3, 6)}));
  return ReadValues(outputs[0].view());
}

absl::Status Scale(absl::Span<const ShardView> shards, float factor) {
  for (const ShardView& shard : shards) {
    for (int64_t i = 0; i < shard.elements(); ++i) shard.data[i] *= factor;
  }
  return absl::OkStatus();
}

void Fill(absl::Span<const ShardView> shards, float value) {
  for (const ShardView& shard : shards) std::fill_n(shard.data, shard.elements(), value);
}

// An update that fills the shards, and writes their casts where there is a place for them.
ShardUpdate FillingWithCasts(float value) {
  return [value](absl::Span<const ShardView> shards) {
    Fill(shards, value);
    for (const ShardView& shard : shards) {
      if (shard.cast == nullptr) continue;
      ConvertRun(shard.data, DType::kF32, shard.cast->data, shard.cast->dtype, shard.elements());
      shard.cast->is_written = true;
    }
    return absl::OkStatus();
  };
}

// Outputs of an unsharded network whose parameters are the initial ones times `factor`.
std::vector<float> ExpectedOutputs(float factor) {
  ToyNet net({6, 6, 6, 6});
  const MaterializedParameters memory(net, kToySeed, DType::kF32, DType::kF32);
  for (const auto& parameter : net.AllParameters()) {
    std::vector<float> values = ReadValues(parameter->data);
    for (float& value : values) value *= factor;
    WriteValues(values, parameter->data);
  }
  return *Outputs(net, /*gradients=*/false);
}

struct Setting {
  NodeMap nodes;
  int replicas;
  ShardingPolicy policy;
};

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const NodeMap& nodes :
       {NodeMap::OneNode(4), NodeMap::RanksPerNode(4, 2), NodeMap::RanksPerNode(4, 1)}) {
    for (const int replicas : {1, 2}) {
      for (const NodeShared shared : {NodeShared::kAuto, NodeShared::kOff}) {
        ShardingPolicy policy;
        policy.node_shared = shared;
        settings.push_back({nodes, replicas, policy});
        if (replicas == 1) continue;
        policy.shard_optimizer_over_replicas = true;
        settings.push_back({nodes, replicas, policy});
        policy.wire_compression = WireCompression::kLossless;
        settings.push_back({nodes, replicas, policy});
      }
    }
  }
  return settings;
}

template <typename Body>
void WithEverySetting(Body body) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(absl::StrCat(setting.replicas, " replicas, node shared ",
                              ToAbsl(Name(setting.policy.node_shared)),
                              setting.policy.shard_optimizer_over_replicas ? ", optimizer over replicas" : "",
                              ", compression ", ToAbsl(Name(setting.policy.wire_compression))));
    RunRanks(setting.nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            MakeToyMesh(setting.replicas, bootstrap.size() / setting.replicas));
      ToyNet net({6, 6, 6, 6});
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine,
                                                         setting.policy, LoadInitialValues(kToySeed)));
      return body(net, *model, bootstrap);
    });
  }
}

// Waits for all ranks, outside of the engine: a rank that fails does not interrupt a slower one.
absl::Status Barrier(Bootstrap& bootstrap) {
  return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
}

TEST(Writes, AfterAForwardWithoutBackwardReachTheNextForward) {
  const std::vector<float> expected = ExpectedOutputs(2.0F);
  WithEverySetting([&](ToyNet& net, ShardedModel& model, Bootstrap&) -> absl::Status {
    WEFT_RETURN_IF_ERROR(Outputs(net, /*gradients=*/true).status());
    WEFT_RETURN_IF_ERROR(
        model.UpdateShards([](absl::Span<const ShardView> shards) { return Scale(shards, 2.0F); }));
    for (const bool gradients : {true, false}) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> outputs, Outputs(net, gradients));
      EXPECT_EQ(outputs, expected);
    }
    return absl::OkStatus();
  });
}

TEST(Writes, ThroughShardsAfterAForwardWithoutBackwardReachTheNextForward) {
  const std::vector<float> expected = ExpectedOutputs(2.0F);
  WithEverySetting([&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    WEFT_RETURN_IF_ERROR(Outputs(net, /*gradients=*/true).status());
    WEFT_RETURN_IF_ERROR(Barrier(bootstrap));  // All ranks have read the shards.
    WEFT_RETURN_IF_ERROR(model.BeginWriting());
    WEFT_RETURN_IF_ERROR(Scale(model.Shards(), 2.0F));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> outputs, Outputs(net, /*gradients=*/true));
    EXPECT_EQ(outputs, expected);
    return absl::OkStatus();
  });
}

TEST(Writes, InSeveralUpdatesReachTheNextForward) {
  const std::vector<float> expected = ExpectedOutputs(8.0F);
  WithEverySetting([&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    const int rank = bootstrap.rank();
    WEFT_RETURN_IF_ERROR(ToyPass(net, rank, bootstrap.size(), 0, 0, 1));
    model.ZeroGradients();
    for (int update = 0; update < 3; ++update) {
      WEFT_RETURN_IF_ERROR(
          model.UpdateShards([](absl::Span<const ShardView> shards) { return Scale(shards, 2.0F); }));
    }
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> outputs, Outputs(net, /*gradients=*/true));
    EXPECT_EQ(outputs, expected);
    return absl::OkStatus();
  });
}

TEST(Writes, OfAveragedWeightsAndBackGiveTheBitsOfTrainingWithoutThem) {
  std::vector<float> weights;  // Those of the first run, which rank 0 of later runs compares with.
  for (const bool swaps : {false, true}) {
    WithEverySetting([&](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
      const auto scale = [](float factor) {
        return [factor](absl::Span<const ShardView> shards) { return Scale(shards, factor); };
      };
      for (int step = 0; step < 2; ++step) {
        WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), step, 0, 1));
        WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
        if (!swaps) continue;
        WEFT_RETURN_IF_ERROR(model.UpdateShards(scale(0.5F)));  // Powers of two round nothing.
        WEFT_RETURN_IF_ERROR(Outputs(net, /*gradients=*/false).status());
        WEFT_RETURN_IF_ERROR(model.UpdateShards(scale(2.0F)));
      }
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> result, ToyWeights(model));
      if (bootstrap.rank() == 0) {
        if (weights.empty()) weights = result;
        EXPECT_EQ(result, weights);
      }
      return absl::OkStatus();
    });
  }
}

TEST(Writes, BetweenForwardAndBackwardFailTheBackward) {
  WithEverySetting([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    for (const bool begin_writing : {true, false}) {
      Invocation invocation;
      WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {ToyInputs(0, 3, 6)}));
      WEFT_RETURN_IF_ERROR(begin_writing ? model.BeginWriting()
                                         : model.UpdateShards([](absl::Span<const ShardView> shards) {
                                             return Scale(shards, 2.0F);
                                           }));
      WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
      const absl::Status status = net.Backward(invocation, {ToyLossGradient(outputs[0], 1.0F)}).status();
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("backward of 'net' after its shards were written: run the backward of a forward "
                            "before its weights are updated or loaded"));
      WEFT_RETURN_IF_ERROR(model.ResetAfterError());
    }
    WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(CallsOfABlock, OutsideOfItsRootFailAndNameTheRemedy) {
  WithEverySetting([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    const auto fails = [&](const char* part, const absl::Status& status) {
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr(absl::StrCat(part, " of 'layers.1' outside of a ", part, " of its root 'net'")),
                HasSubstr("call it from 'net'"), HasSubstr("FullyShard")));
      return model.ResetAfterError();
    };
    Invocation alone;
    WEFT_RETURN_IF_ERROR(fails("forward", net.layer(1).Forward(alone, {ToyInputs(0, 3, 6)}).status()));
    Invocation invocation;
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {ToyInputs(0, 3, 6)}));
    WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
    WEFT_RETURN_IF_ERROR(
        fails("backward", net.layer(1).Backward(invocation, {ToyLossGradient(outputs[0], 1.0F)}).status()));
    WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
    return ToyUpdate(model, 1.0, nullptr);
  });
}

TEST(Writes, LetShardsBeWrittenAgainAfterBeginWriting) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const NodeMap& nodes : {NodeMap::OneNode(3), NodeMap{{0, 0, 1}}, NodeMap{{0, 1, 2}}}) {
      ShardingPolicy policy;
      policy.param_dtype = dtype;
      WithToyModel(nodes, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
        for (const float value : {3.0F, 5.0F}) {
          WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
          WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
          WEFT_RETURN_IF_ERROR(model.BeginWriting());
          for (const auto& group : PartsOf(model).groups)
            EXPECT_EQ(group->state(), ParamGroup::State::kSharded);
          Fill(model.Shards(), value);
          WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
          EXPECT_THAT(weights, ::testing::Each(value));
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(Writes, ThroughShardsAfterAnUpdateWithCastsReachReaders) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const NodeMap& nodes : {NodeMap::OneNode(3), NodeMap{{0, 0, 1}}, NodeMap{{0, 1, 2}}}) {
      SCOPED_TRACE(absl::StrCat(ToAbsl(Name(dtype)), ", ", nodes.node_count(), " nodes"));
      ShardingPolicy policy;
      policy.param_dtype = dtype;
      WithToyModel(nodes, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
        WEFT_RETURN_IF_ERROR(model.UpdateShards(FillingWithCasts(2.0F)));
        WEFT_RETURN_IF_ERROR(model.sharded_groups().PrepareWrites());
        Fill(model.Shards(), 3.0F);
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
        EXPECT_THAT(weights, ::testing::Each(3.0F));
        return absl::OkStatus();
      });
    }
  }
}

// Such an update has no place for casts, as groups would gather into private images.
TEST(Writes, WhileTheAllGatherIsCustomAfterAnUpdateWithCastsReachReaders) {
  WithToyModel(3, SharedImages(DType::kBF16), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(model.UpdateShards(FillingWithCasts(2.0F)));
    WEFT_RETURN_IF_ERROR(
        model.SetCustomAllGather(net.layer(1), [](const AllGatherRequest&) -> StartedCollective {
          return absl::InternalError("a gather before the engine's all-gather is back");
        }));
    WEFT_RETURN_IF_ERROR(model.UpdateShards(FillingWithCasts(3.0F)));
    WEFT_RETURN_IF_ERROR(model.SetCustomAllGather(net.layer(1), nullptr));
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
    EXPECT_THAT(weights, ::testing::Each(3.0F));
    return absl::OkStatus();
  });
}

// Updates all shards to `value`. Readers outside of passes get it on every rank.
absl::Status ExpectAnUpdateReachesReaders(ShardedModel& model, float value) {
  WEFT_RETURN_IF_ERROR(model.UpdateShards([value](absl::Span<const ShardView> shards) {
    Fill(shards, value);
    return absl::OkStatus();
  }));
  WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> shards, model.CurrentShards());
  for (const ShardView& shard : shards) {
    EXPECT_THAT(absl::MakeConstSpan(shard.data, static_cast<size_t>(shard.elements())),
                ::testing::Each(value));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<float> weights, ToyWeights(model));
  EXPECT_THAT(weights, ::testing::Each(value));
  return absl::OkStatus();
}

// Reduces on demand while groups are unsharded, and updates.
absl::Status ExpectUpdatesAfterReductionsOnDemandReachReaders(ToyNet& net, ShardedModel& model,
                                                              Bootstrap& bootstrap) {
  const auto reduce_and_update = [&model](float value) -> absl::Status {
    WEFT_RETURN_IF_ERROR(model.ReduceGradients());
    EXPECT_FALSE(model.sharded_groups().are_shards_read());
    for (const auto& group : PartsOf(model).groups) EXPECT_EQ(group->state(), ParamGroup::State::kSharded);
    WEFT_RETURN_IF_ERROR(ExpectAnUpdateReachesReaders(model, value));
    model.ZeroGradients();
    return absl::OkStatus();
  };
  model.SetRequiresGradientSync(false);
  WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
  WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(1)));
  WEFT_RETURN_IF_ERROR(handle.Wait());
  WEFT_ASSIGN_OR_RETURN(UnshardHandle pending, model.Unshard(net.layer(2)));
  WEFT_RETURN_IF_ERROR(reduce_and_update(3.0F));
  EXPECT_THAT(pending.Wait(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no unshard is pending")));

  WEFT_RETURN_IF_ERROR(Outputs(net, /*gradients=*/true).status());  // A forward without backward.
  return reduce_and_update(5.0F);
}

TEST(Writes, AfterAReductionOnDemandReachReaders) {
  WithEverySetting([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) {
    return ExpectUpdatesAfterReductionsOnDemandReachReaders(net, model, bootstrap);
  });
}

TEST(Writes, AfterAReductionOnDemandReachReadersInEveryResidencyAndDType) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const NodeShared shared : {NodeShared::kAuto, NodeShared::kOff}) {
        SCOPED_TRACE(
            absl::StrCat(ranks, " ranks, ", ToAbsl(Name(dtype)), ", node shared ", ToAbsl(Name(shared))));
        RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
          WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, ranks));
          ToyNet net({6, 6, 6, 6});
          ShardingPolicy policy;
          policy.param_dtype = dtype;
          policy.node_shared = shared;
          WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.blocks(), mesh, *engine.engine, policy,
                                                             LoadInitialValues(kToySeed)));
          return ExpectUpdatesAfterReductionsOnDemandReachReaders(net, *model, bootstrap);
        });
      }
    }
  }
}

TEST(Writes, AfterAForwardWithGroupsThatBackwardKeptReachReaders) {
  WithEverySetting([](ToyNet& net, ShardedModel& model, Bootstrap& bootstrap) -> absl::Status {
    model.SetReshardAfterBackward(false);
    WEFT_RETURN_IF_ERROR(ToyPass(net, bootstrap.rank(), bootstrap.size(), 0, 0, 1));
    EXPECT_FALSE(model.sharded_groups().are_shards_read());
    WEFT_RETURN_IF_ERROR(Outputs(net, /*gradients=*/true).status());
    EXPECT_TRUE(model.sharded_groups().are_shards_read());
    return ExpectAnUpdateReachesReaders(model, 3.0F);
  });
}

}  // namespace
}  // namespace weft::testing
