// Control of a sharded model by a training loop: prefetches, unshard, reshard.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/tiny_llama.h"
#include "weft/nn/llama.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using State = ParamGroup::State;

std::vector<State> States(const ShardedModel& model) {
  std::vector<State> states;
  for (const auto& group : PartsOf(model).groups) states.push_back(group->state());
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
  WEFT_RETURN_IF_ERROR(net.Backward(invocation, {Tensor::Scalar(1.0F)}).status());
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

// The embedding is among the groups with which backward begins if it is the only block, and else among those
// that the end of the forward would prefetch.
TEST(ShardedModel, HoldsNoImageAfterForwardOfAGroupThatBackwardLeavesSharded) {
  for (const bool has_more_blocks : {false, true}) {
    RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 4));
      WEFT_ASSIGN_OR_RETURN(const auto net, LlamaModel::Create(TinyLlama()));
      Module* const embedding = net->children()[0];
      std::vector<Module*> blocks = {embedding};
      if (has_more_blocks) blocks.insert(blocks.end(), net->blocks().begin(), net->blocks().end());
      ShardingPolicy policy = SharedImages();
      policy.prefetch_depth = 1;
      WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(*net, blocks, mesh, *engine.engine, policy,
                                                         LoadInitialValues(kToySeed)));
      for (const bool unshards : {true, false}) {
        WEFT_RETURN_IF_ERROR(model->SetUnshardInBackward(*embedding, unshards));
        State after_forward = State::kSharded;
        const auto hook = net->AddForwardPostHook([&](Module&, Invocation&, Tensors&) {
          after_forward = States(*model)[1];
          return absl::OkStatus();
        });
        WEFT_RETURN_IF_ERROR(PassOf(*net, *model, bootstrap.rank()).status());
        net->RemoveHook(hook);
        EXPECT_EQ(after_forward == State::kSharded, !unshards);
      }
      return absl::OkStatus();
    });
  }
}

int64_t GathersOfAPass(ToyNet& net, ShardedModel& model, int rank) {
  const int64_t before = model.counters().all_gathers;
  EXPECT_OK(ToyPassOf(net, model, rank));
  EXPECT_OK(ToyUpdate(model, kNoClipping, nullptr));
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
    WEFT_RETURN_IF_ERROR(model.SetReshardAfterForward(net, true));  // The root and the layers.
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

TEST(ShardedModel, SetsCollectivesAndTheHookOfOneModule) {
  // One rank on each node: groups of one rank would call no collective.
  WithToyModel(
      NodeMap::RanksPerNode(2, 1), {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
        std::vector<std::string> hooked;
        WEFT_RETURN_IF_ERROR(
            model.SetGradientHook(net.layer(1), [&](const std::string& group, const TensorView&) {
              hooked.push_back(group);
              return absl::OkStatus();
            }));
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
        EXPECT_THAT(hooked, ::testing::ElementsAre("layers.1"));
        model.ZeroGradients();

        // Each rank gets the label of its first request and stops there, or hears first that the other one
        // stopped.
        const auto refuse = [](const std::string& label) {
          return absl::UnimplementedError("custom " + label);
        };
        WEFT_RETURN_IF_ERROR(model.SetCustomReduceScatter(
            net.layer(1),
            [&](const ReduceScatterRequest& request) -> StartedCollective { return refuse(request.label); }));
        const auto refused = AnyOf(StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("custom layers.1")),
                                   StatusIs(absl::StatusCode::kAborted, HasSubstr("custom layers.1")));
        EXPECT_THAT(ToyPassOf(net, model, rank), refused);
        WEFT_RETURN_IF_ERROR(model.ResetAfterError());
        WEFT_RETURN_IF_ERROR(model.SetCustomReduceScatter(net.layer(1), nullptr));
        WEFT_RETURN_IF_ERROR(model.SetCustomAllGather(
            net.layer(1),
            [&](const AllGatherRequest& request) -> StartedCollective { return refuse(request.label); }));
        EXPECT_THAT(ToyPassOf(net, model, rank), refused);
        WEFT_RETURN_IF_ERROR(model.ResetAfterError());
        WEFT_RETURN_IF_ERROR(model.SetCustomAllGather(net.layer(1), nullptr));

        const ToyNet other({6, 6});
        const auto is_refused = StatusIs(kInvalid, HasSubstr("no parameter group"));
        EXPECT_THAT(model.SetGradientHook(other, nullptr), is_refused);
        EXPECT_THAT(model.SetCustomAllGather(other, nullptr), is_refused);
        EXPECT_THAT(model.SetCustomReduceScatter(other, nullptr), is_refused);
        return ToyPassOf(net, model, rank);
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

TEST(ShardedModel, LeavesUnshardedWhatACallerUnshardedWhenGradientsAreZeroed) {
  for (const ShardingPolicy& policy : {PrivateImages(), SharedImages()}) {
    WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      const auto unshard = [&](size_t layer) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(layer)));
        return handle.Wait();
      };
      WEFT_RETURN_IF_ERROR(model.SetReshardAfterBackward(net.layer(2), false));
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
      WEFT_RETURN_IF_ERROR(unshard(0));
      model.ZeroGradients();
      EXPECT_EQ(States(model),
                (std::vector{State::kSharded, State::kUnsharded, State::kSharded, State::kSharded}));
      // A group that backward kept and the caller has resharded is the caller's, too.
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
      WEFT_RETURN_IF_ERROR(model.Reshard(net.layer(2)));
      WEFT_RETURN_IF_ERROR(unshard(2));
      model.ZeroGradients();
      EXPECT_EQ(States(model),
                (std::vector{State::kSharded, State::kSharded, State::kSharded, State::kUnsharded}));
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
      return ToyUpdate(model, 1.0, nullptr);
    });
  }
}

TEST(ShardedModel, LeavesUnshardedAModuleThatNoRankCalledWhenGradientsAreZeroed) {
  WithToyModel(2, PrivateImages(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    net.SetOrder({});
    model.SetReshardAfterBackward(false);
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(model.Reshard(net.layer(1)));  // Ranks do not know yet that none calls it.
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_ASSIGN_OR_RETURN(UnshardHandle handle, model.Unshard(net.layer(1)));
    WEFT_RETURN_IF_ERROR(handle.Wait());
    model.ZeroGradients();
    EXPECT_EQ(States(model),
              (std::vector{State::kSharded, State::kSharded, State::kUnsharded, State::kSharded}));
    return model.Reshard(net.layer(1));
  });
}

}  // namespace
}  // namespace weft::testing
