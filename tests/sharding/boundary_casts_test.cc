// Dtypes at the borders of groups: what modules see, what callers get, and what comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/sharded_toy.h"

namespace weft::testing {
namespace {

ShardingPolicy Bf16() {
  ShardingPolicy policy;
  policy.param_dtype = DType::kBF16;
  return policy;
}

struct Seen {
  std::vector<DType> inputs;           // Of the layers, in order of forward.
  std::vector<DType> input_gradients;  // Of the layers, in order of backward, as the layer before gets them.
  DType output;
  DType root_gradient;
};

Seen Observe(ToyNet& net) {
  Seen seen;
  std::vector<Module::HookId> hooks;
  for (size_t i = 0; i < 3; ++i) {
    hooks.push_back(net.layer(i).AddForwardPreHook([&seen](Module&, Invocation&, Tensors& inputs) {
      seen.inputs.push_back(inputs[0].dtype());
      return absl::OkStatus();
    }));
    hooks.push_back(net.layer(i).AddBackwardPostHook([&seen](Module&, Invocation&, Tensors& gradients) {
      seen.input_gradients.push_back(gradients[0].dtype());
      return absl::OkStatus();
    }));
  }
  Invocation invocation;
  const auto outputs = net.Forward(invocation, {ToyInputs(0, 2, 6)});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  seen.output = (*outputs)[0].dtype();
  const auto gradients = net.Backward(invocation, {ToyLossGradient((*outputs)[0], 1.0F)});
  EXPECT_TRUE(gradients.ok()) << gradients.status();
  seen.root_gradient = (*gradients)[0].dtype();
  EXPECT_TRUE(invocation.empty());
  for (size_t i = 0; i < hooks.size(); ++i) net.layer(i / 2).RemoveHook(hooks[i]);
  return seen;
}

TEST(BoundaryCasts, GiveModulesTheDTypeTheyComputeWithAndGradientsBackTheirs) {
  for (const bool checkpoint : {false, true}) {
    WithToyModel(2, Bf16(), [checkpoint](ToyNet& net, ShardedModel& model, int) -> absl::Status {
      net.layer(1).SetActivationCheckpointing(checkpoint);
      net.SetActivationCheckpointing(checkpoint);
      const Seen seen = Observe(net);
      EXPECT_THAT(seen.inputs, ::testing::Each(DType::kBF16));
      EXPECT_THAT(seen.input_gradients, ::testing::Each(DType::kF32));  // The toy's layers give f32.
      EXPECT_EQ(seen.output, DType::kF32);
      EXPECT_EQ(seen.root_gradient, DType::kF32);
      model.ZeroGradients();
      return absl::OkStatus();
    });
  }
}

TEST(BoundaryCasts, LeaveInputsAloneWhenTold) {
  ShardingPolicy policy = Bf16();
  policy.cast_forward_inputs = false;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel&, int) -> absl::Status {
    EXPECT_THAT(Observe(net).inputs, ::testing::Each(DType::kF32));
    return absl::OkStatus();
  });
}

TEST(BoundaryCasts, GiveTheCallerTheOutputDTypeAndTakeItsGradientBack) {
  ShardingPolicy policy;
  policy.output_dtype = DType::kBF16;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel&, int) -> absl::Status {
    DType inner = DType::kI32;
    net.AddBackwardPreHook([&inner](Module&, Invocation&, Tensors& gradients) {
      inner = gradients[0].dtype();
      return absl::OkStatus();
    });
    Invocation invocation;
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {ToyInputs(0, 2, 6)}));
    EXPECT_EQ(outputs[0].dtype(), DType::kBF16);
    const Tensor gradient = Tensor::Zeros(DType::kBF16, outputs[0].shape());
    WEFT_RETURN_IF_ERROR(net.Backward(invocation, {gradient}).status());
    EXPECT_EQ(inner, DType::kF32);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
