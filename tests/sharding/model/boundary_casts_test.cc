// Casts of inputs, outputs and their gradients at the boundaries of groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"

namespace weft::testing {
namespace {

ShardingPolicy Bf16() {
  ShardingPolicy policy;
  policy.param_dtype = DType::kBF16;
  return policy;
}

// DTypes of the tensors of one pass.
struct SeenDTypes {
  std::vector<DType> inputs;           // Inputs of the layers, in order of forward.
  std::vector<DType> input_gradients;  // Gradients that the layers return, in order of backward.
  DType output;                        // Output of the root.
  DType root_gradient;                 // Gradient that the root returns.
};

SeenDTypes RunPass(ToyNet& net) {
  SeenDTypes seen;
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

TEST(BoundaryCasts, CastInputsToTheComputeDTypeAndGradientsBack) {
  for (const bool checkpoint : {false, true}) {
    WithToyModel(2, Bf16(), [checkpoint](ToyNet& net, ShardedModel& model, int) -> absl::Status {
      net.layer(1).SetActivationCheckpointing(checkpoint);
      net.SetActivationCheckpointing(checkpoint);
      const SeenDTypes seen = RunPass(net);
      EXPECT_THAT(seen.inputs, ::testing::Each(DType::kBF16));
      EXPECT_THAT(seen.input_gradients, ::testing::Each(DType::kF32));  // ToyLayer returns f32 gradients.
      EXPECT_EQ(seen.output, DType::kF32);
      EXPECT_EQ(seen.root_gradient, DType::kF32);
      model.ZeroGradients();
      return absl::OkStatus();
    });
  }
}

TEST(BoundaryCasts, LeaveInputsUnchangedWhenTold) {
  ShardingPolicy policy = Bf16();
  policy.cast_forward_inputs = false;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel&, int) -> absl::Status {
    EXPECT_THAT(RunPass(net).inputs, ::testing::Each(DType::kF32));
    return absl::OkStatus();
  });
}

TEST(BoundaryCasts, CastOutputsToTheOutputDTypeAndTheirGradientsBack) {
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
