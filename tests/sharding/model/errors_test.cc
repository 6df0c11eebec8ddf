// Failures of one rank in a pass: the pass ends on all ranks with the cause, and a reset leaves later steps
// unchanged.
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/support/test_timeout.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using AddHook = Module::HookId (Module::*)(Module::Hook);
struct Place {
  AddHook add;
  const char* name;
};
constexpr Place kPlaces[] = {{&Module::AddForwardPreHook, "before forward"},
                             {&Module::AddForwardPostHook, "after forward"},
                             {&Module::AddBackwardPreHook, "before backward"},
                             {&Module::AddBackwardPostHook, "after backward"}};

// Runs a pass in which rank 1 fails. A rank that completes the pass gets the error in its next collective.
absl::Status PassThatFails(ToyNet& net, ShardedModel& model, int rank, Module& module, const Place& place) {
  const std::string cause = absl::StrCat("injected ", place.name, " of ", module.name());
  const Module::HookId hook = (module.*place.add)([&](Module&, Invocation&, Tensors&) {
    return rank == 1 ? absl::DataLossError(cause) : absl::OkStatus();
  });
  absl::Status status = ToyPassOf(net, model, rank, 1);
  module.RemoveHook(hook);
  if (status.ok()) status = model.ClipGradNorm(1.0).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(cause));
  EXPECT_THAT(ToyPassOf(net, model, rank, 1), ::testing::Not(IsOk()));  // The model fails until it is reset.
  return model.ResetAfterError();
}

void ExpectRecovery(const NodeMap& nodes, const ShardingPolicy& policy, bool first_pass, bool checkpoint) {
  SCOPED_TRACE(absl::StrCat("reshard ", policy.reshard_after_forward, ", prefetch ", policy.PrefetchDepth(),
                            first_pass ? ", in the first pass" : "", checkpoint ? ", checkpoints" : ""));
  WithToyModel(nodes, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    for (Module* block : net.blocks()) block->SetActivationCheckpointing(checkpoint);
    const auto step = [&](int number) -> absl::Status {
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank, number));
      return ToyUpdate(model, 1.0, nullptr);
    };
    for (Module* module : net.Descendants()) {
      for (const Place& place : kPlaces) {
        if (!first_pass) WEFT_RETURN_IF_ERROR(step(0));
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> before, ToyWeights(model));
        WEFT_RETURN_IF_ERROR(PassThatFails(net, model, rank, *module, place));
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> after, ToyWeights(model));
        EXPECT_EQ(before, after);
        if (first_pass) model.RecordOrderAgain();
      }
    }
    return step(1);
  });
}

TEST(ShardedModelErrors, EndThePassOnAllRanksAndCanBeResetInEveryState) {
  for (const bool reshard : {true, false}) {
    for (const bool first_pass : {true, false}) {
      for (const bool checkpoint : {true, false}) {
        ShardingPolicy policy;
        policy.reshard_after_forward = reshard;
        ExpectRecovery(NodeMap::OneNode(2), policy, first_pass, checkpoint);
      }
    }
  }
}

TEST(ShardedModelErrors, CanBeResetIfMastersAreCastInPlace) {
  for (const bool first_pass : {true, false})
    ExpectRecovery(NodeMap::OneNode(2), SharedImages(DType::kBF16), first_pass, /*checkpoint=*/false);
}

TEST(ShardedModelErrors, CanBeResetIfImagesAreSharedOnEachNode) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectRecovery({{0, 0, 1}}, SharedImages(dtype), /*first_pass=*/false, /*checkpoint=*/true);
  }
}

TEST(ShardedModelErrors, ReachOtherRanksWhenAnUpdateFails) {
  for (const NodeMap& nodes : {NodeMap::OneNode(2), NodeMap{{0, 1}}}) {
    WithToyModel(nodes, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      const auto pass_and_update = [&]() -> absl::Status {
        WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
        int groups = 0;
        return model.UpdateShards([&](absl::Span<const ShardView>) {
          return ++groups == 3 && rank == 1 ? absl::DataLossError("bad moments") : absl::OkStatus();
        });
      };
      absl::Status status = pass_and_update();
      if (status.ok()) status = ToyPassOf(net, model, rank);  // Rank 0 gets the error here or before.
      const std::string cause =
          rank == 1 ? "update of 'layers.1': sharding stopped: bad moments" : "rank 1: bad moments";
      EXPECT_THAT(std::string(status.message()), HasSubstr(cause));
      EXPECT_THAT(model.ResetAfterError(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("incomplete on")));
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
      return ToyUpdate(model, 1.0, nullptr);
    });
  }
}

// Rank 0 has made the update of a step when rank 1 fails.
TEST(ShardedModelErrors, NameTheRanksWithoutTheLastUpdateAtTheReset) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    if (rank == 0) {
      WEFT_RETURN_IF_ERROR(model.UpdateShards([](absl::Span<const ShardView>) { return absl::OkStatus(); }));
    }
    Bootstrap& bootstrap = PartsOf(model).context.state().engine().bootstrap();
    WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
    if (rank == 1) model.sharded_groups().Stop(absl::DataLossError("a bad batch"));
    EXPECT_THAT(model.ResetAfterError(),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("the last update of 'net' is missing or incomplete on rank 1:"),
                               HasSubstr("load the weights"))));
    // The weights are loaded, and the next failure comes after an update of all ranks.
    WEFT_RETURN_IF_ERROR(model.BeginWriting());
    WEFT_RETURN_IF_ERROR(FillShards(model.Shards(), LoadInitialValues(kToySeed)));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    WEFT_RETURN_IF_ERROR(ToyUpdate(model, 1.0, nullptr));
    WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
    if (rank == 1) model.sharded_groups().Stop(absl::DataLossError("a bad batch"));
    return model.ResetAfterError();
  });
}

TEST(ShardedModelErrors, LeaveLaterStepsUnchangedAfterAReset) {
  const auto train = [](bool fails) {
    std::vector<float> weights;
    WithToyModel(2, {}, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      for (int step = 0; step < 3; ++step) {
        if (fails && step == 1) {
          WEFT_RETURN_IF_ERROR(PassThatFails(net, model, rank, net.layer(1), kPlaces[3]));
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
  EXPECT_EQ(train(/*fails=*/true), train(/*fails=*/false));
}

TEST(ShardedModelErrors, ReachOtherRanksWhenALayerThrows) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    const auto hook = net.layer(1).AddForwardPreHook([rank](Module&, Invocation&, Tensors&) -> absl::Status {
      if (rank == 1) throw std::runtime_error("injected");
      return absl::OkStatus();
    });
    if (rank == 1) {
      EXPECT_THAT([&] { return ToyPassOf(net, model, rank); },
                  ::testing::ThrowsMessage<std::runtime_error>("injected"));
    } else {
      EXPECT_THAT(std::string(ToyPassOf(net, model, rank).message()),
                  HasSubstr("rank 1: an exception escaped module 'net': injected"));
    }
    net.layer(1).RemoveHook(hook);
    WEFT_RETURN_IF_ERROR(model.ResetAfterError());
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    return ToyUpdate(model, 1.0, nullptr);
  });
}

ShardingPolicy ZeroUnused() {
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  return policy;
}

TEST(UpdatesInBackward, NeedNoAgreementNoClippingAndABeginning) {
  constexpr auto kNothing = [](absl::Span<const ShardView>) { return absl::OkStatus(); };
  const std::vector<ClipSet> clipped = {{[](const Parameter&) { return true; }, 1.0}};
  for (const ShardingPolicy& policy : {ShardingPolicy(), ZeroUnused()}) {
    WithToyModel(2, policy, [&](ToyNet&, ShardedModel& model, int) -> absl::Status {
      EXPECT_THAT(model.FinishUpdatesInBackward(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call BeginUpdatesInBackward")));
      const bool agrees = policy.unused_gradients == UnusedGradients::kNone;
      EXPECT_THAT(
          model.BeginUpdatesInBackward(kNothing, clipped),
          StatusIs(agrees ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInvalidArgument,
                   HasSubstr(agrees ? "to kZero" : "set max_norm to kNoClipping")));
      return absl::OkStatus();
    });
  }
}

TEST(ShardedModelErrors, ReachOtherRanksWhenAnUnshardFails) {
  for (const ShardingPolicy& policy : {PrivateImages(), SharedImages()}) {
    WithToyModel(3, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      float storage[2] = {};
      Parameter& weight = *net.layer(1).weight();
      for (const bool while_gathering : {false, true}) {
        const auto set_storage = [&] {
          if (rank == 1) weight.data = TensorView::Contiguous(storage, DType::kF32, {2});
        };
        if (!while_gathering) set_storage();
        absl::StatusOr<UnshardHandle> handle = model.Unshard(net.layer(1));
        if (while_gathering) set_storage();
        absl::Status status = handle.ok() ? handle->Wait() : handle.status();
        // A rank may have gathered all it needs before it hears of the failure.
        if (status.ok()) status = ToyWeights(model).status();
        const std::string message(status.message());
        EXPECT_THAT(message, HasSubstr("parameter 'layers.1.weight' was given storage of"));
        if (rank == 1) {
          EXPECT_THAT(message, ::testing::StartsWith("unshard of 'layers.1': "));
          weight.data.data = nullptr;
        }
        WEFT_RETURN_IF_ERROR(model.ResetAfterError());
        // No rank fails again before all ranks have recovered.
        Bootstrap& bootstrap = PartsOf(model).context.state().engine().bootstrap();
        WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
      }
      return ToyPassOf(net, model, rank);
    });
  }
}

TEST(UpdatesInBackward, AreRefusedInABackwardThatIsNotTheLast) {
  WithToyModel(2, ZeroUnused(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    model.SetIsLastBackward(false);
    WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    EXPECT_THAT(std::string(ToyPassOf(net, model, rank).message()),
                HasSubstr("updates in a backward that is not the last one"));
    WEFT_RETURN_IF_ERROR(model.ResetAfterError());
    model.SetIsLastBackward(true);
    WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    return FinishToyUpdateInBackward(model, nullptr);
  });
}

// The backward stops to be the last one after it has begun.
TEST(UpdatesInBackward, ThatBeginAgainWhileReductionsAreUnderWayFail) {
  WithToyModel(2, ZeroUnused(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    // Reductions with hooks are delivered at the end of the last backward.
    for (const auto& group : PartsOf(model).groups)
      group->SetGradientHook([](const std::string&, const TensorView&) { return absl::OkStatus(); });
    WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    const auto hook = net.layer(2).AddBackwardPreHook([&](Module&, Invocation&, Tensors&) {
      model.SetIsLastBackward(false);
      return absl::OkStatus();
    });
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    net.layer(2).RemoveHook(hook);
    WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    model.SetIsLastBackward(true);
    EXPECT_THAT(std::string(ToyPassOf(net, model, rank).message()),
                HasSubstr("was reduced for updates in backward that have ended"));
    return model.ResetAfterError();
  });
}

// The updates of some groups have written shards when rank 1 fails.
TEST(UpdatesInBackward, ThatEndEarlyAreNamedAtTheReset) {
  WithToyModel(2, ZeroUnused(), [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    Bootstrap& bootstrap = PartsOf(model).context.state().engine().bootstrap();
    WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
    if (rank == 1) model.sharded_groups().Stop(absl::DataLossError("a bad batch"));
    EXPECT_THAT(model.ResetAfterError(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("incomplete on ranks 0, 1:")));
    WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    return FinishToyUpdateInBackward(model, nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
