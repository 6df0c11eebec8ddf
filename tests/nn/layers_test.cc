// Tests of the layers against plain loops in double and their central differences.
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gated_unit.h"
#include "weft/nn/gelu.h"
#include "weft/nn/heads.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/lm_head_loss.h"
#include "weft/nn/materialize.h"
#include "weft/nn/mlp.h"
#include "weft/nn/position_embedding.h"
#include "weft/nn/rms_norm.h"
#include "weft/nn/sequential.h"
#include "weft/nn/transpose.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using Values = std::vector<Doubles>;

// Tolerances for bf16 and f16, which have 8 and 11 significant bits: a layer rounds its result, and at most
// one intermediate value.
const std::vector<GradientCheckOptions> kDtypes = {
    {},
    {.grad_dtype = DType::kBF16, .tolerance = 0x1p-7},
    {.dtype = DType::kBF16, .tolerance = 0x1p-6},
    {.dtype = DType::kBF16, .grad_dtype = DType::kBF16, .tolerance = 0x1p-6},
    {.dtype = DType::kF16, .tolerance = 0x1p-9},
    {.dtype = DType::kF16, .grad_dtype = DType::kF16, .tolerance = 0x1p-9},
};

TEST(Linear, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    for (const int64_t tokens : {1, 6}) {
      Linear linear("linear", 5, 7);
      CheckGradients(
          linear, {TestTensor(options.dtype, {tokens, 5}, 1)},
          [](const Values& v) -> Values { return {oracle::Linear(v[0], v[1], 5, 7)}; }, options);
    }
  }
}

TEST(Linear, SumsTheInputGradientsOfItsWeights) {
  for (const GradientCheckOptions& options : kDtypes) {
    Linear linear("attention", 6, {{"q.weight", 8}, {"k.weight", 2}, {"v.weight", 3}});
    CheckGradients(
        linear, {TestTensor(options.dtype, {2, 3, 6}, 1)},
        [](const Values& v) -> Values {
          return {oracle::Linear(v[0], v[1], 6, 8), oracle::Linear(v[0], v[2], 6, 2),
                  oracle::Linear(v[0], v[3], 6, 3)};
        },
        options);
  }
}

TEST(Linear, NamesEachWeight) {
  Linear one("mlp.down_proj", 2, 3);
  EXPECT_EQ(one.parameters()[0]->name, "mlp.down_proj.weight");
  Linear two("mlp", 2, {{"gate_proj.weight", 3}, {"up_proj.weight", 3}});
  EXPECT_EQ(two.parameters()[1]->name, "mlp.up_proj.weight");
}

TEST(Linear, AcceptsZeroTokens) {
  Linear linear("linear", 4, 3);
  const MaterializedParameters memory(linear, 0, DType::kF32, DType::kF32);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, linear.Forward(invocation, {Tensor::Empty(DType::kF32, {0, 4})}));
  EXPECT_EQ(y[0].shape(), (Shape{0, 3}));
  ASSERT_OK(linear.Backward(invocation, y).status());
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(linear.parameters()[0]->grad.As<float>()[i], 0.0F);
}

TEST(Linear, AllocatesResultsWithItsResultAllocators) {
  Linear linear("linear", 3, {{"a.weight", 2}, {"b.weight", 4}});
  const MaterializedParameters memory(linear, 1, DType::kF32, DType::kF32);
  std::vector<void*> outputs;
  std::vector<void*> gradients;
  const auto record_in = [](std::vector<void*>& made) {
    return [&made](DType dtype, Shape shape) -> absl::StatusOr<Tensor> {
      Tensor tensor = Tensor::Empty(dtype, std::move(shape));
      made.push_back(tensor.view().data);
      return tensor;
    };
  };
  linear.SetResultAllocators({record_in(outputs), record_in(gradients)});
  Invocation invocation;
  const Tensor x = TestTensor(DType::kF32, {5, 3}, 1);
  ASSERT_OK_AND_ASSIGN(const Tensors y, linear.Forward(invocation, {x}));
  EXPECT_EQ(outputs, (std::vector<void*>{y[0].view().data, y[1].view().data}));
  ASSERT_OK_AND_ASSIGN(const Tensors dx, linear.Backward(invocation, y));
  EXPECT_EQ(gradients, std::vector<void*>{dx[0].view().data});

  linear.SetResultAllocators(
      {[](DType, const Shape&) -> absl::StatusOr<Tensor> { return absl::ResourceExhaustedError("full"); },
       {}});
  EXPECT_THAT(linear.Forward(invocation, {x}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
}

TEST(Linear, AddsABiasToTheOutputsThatHaveOne) {
  for (const GradientCheckOptions& options : kDtypes) {
    Linear linear(
        "attention", 5,
        std::vector<Linear::Output>{{"q.weight", 3, "q.bias"}, {"k.weight", 2}, {"v.weight", 4, "v.bias"}});
    std::vector<std::string> names;
    for (const auto& parameter : linear.parameters()) names.push_back(parameter->name);
    EXPECT_EQ(names,
              (std::vector<std::string>{"attention.q.weight", "attention.k.weight", "attention.v.weight",
                                        "attention.q.bias", "attention.v.bias"}));
    EXPECT_EQ(linear.parameters()[3]->initializer.kind, Initializer::Kind::kConstant);
    const auto with_bias = [](Doubles y, const Doubles& bias) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
      return y;
    };
    // More tokens than a part of the bias's gradient sum has.
    CheckGradients(
        linear, {TestTensor(options.dtype, {70, 5}, 1)},
        [&](const Values& v) -> Values {
          return {with_bias(oracle::Linear(v[0], v[1], 5, 3), v[4]), oracle::Linear(v[0], v[2], 5, 2),
                  with_bias(oracle::Linear(v[0], v[3], 5, 4), v[5])};
        },
        options);
  }
}

TEST(Linear, AddsTheScaledProductOfAnAdapter) {
  for (const GradientCheckOptions& options : kDtypes) {
    Linear linear("attention", 5,
                  std::vector<Linear::Output>{{"q.weight", 3, "q.bias"}, {"k.weight", 2}, {"v.weight", 4}});
    linear.AddAdapter(0, 2, 1.5F);
    linear.AddAdapter(2, 3, 0.25F);
    EXPECT_EQ(linear.parameters()[4]->name, "base_model.model.attention.q.lora_A.weight");
    EXPECT_EQ(linear.parameters()[7]->name, "base_model.model.attention.v.lora_B.weight");
    EXPECT_EQ(linear.parameters()[7]->shape, (Shape{4, 3}));
    const auto adapted = [](Doubles y, const Doubles& x, const Doubles& a, const Doubles& b, int64_t rank,
                            double scaling) {
      const auto features = static_cast<int64_t>(b.size()) / rank;
      const Doubles part = oracle::Linear(oracle::Linear(x, a, 5, rank), b, rank, features);
      for (size_t i = 0; i < y.size(); ++i) y[i] += scaling * part[i];
      return y;
    };
    CheckGradients(
        linear, {TestTensor(options.dtype, {7, 5}, 1)},
        [&](const Values& v) -> Values {
          Doubles q = oracle::Linear(v[0], v[1], 5, 3);
          for (size_t i = 0; i < q.size(); ++i) q[i] += v[4][i % 3];
          return {adapted(q, v[0], v[5], v[6], 2, 1.5), oracle::Linear(v[0], v[2], 5, 2),
                  adapted(oracle::Linear(v[0], v[3], 5, 4), v[0], v[7], v[8], 3, 0.25)};
        },
        options);
  }
}

TEST(Linear, KeepsNoInputForFrozenWeights) {
  Linear linear("linear", 3, 2);
  const Tensor x = TestTensor(DType::kF32, {4, 3}, 1);
  const auto readers_after_forward = [&] {
    const MaterializedParameters memory(linear, 1, DType::kF32, DType::kF32);
    Invocation invocation;
    const long before = x.storage().use_count();
    const Tensors y = linear.Forward(invocation, {x}).value();
    const long kept = x.storage().use_count() - before;
    EXPECT_OK(linear.Backward(invocation, y).status());
    return kept;
  };
  EXPECT_EQ(readers_after_forward(), 1);
  linear.parameters()[0]->requires_grad = false;
  EXPECT_EQ(readers_after_forward(), 0);
}

TEST(RmsNorm, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    // Dims around the number of vector lanes, tokens around the part size of the weight's gradient sum. eps
    // is large, because the gradient of a row with a single value would otherwise be nearly zero.
    for (const auto& [tokens, dim] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {2, 32}, {5, 67}, {130, 3}}) {
      constexpr float kEps = 0.25F;
      RmsNorm norm("norm", dim, kEps);
      CheckGradients(
          norm, {TestTensor(options.dtype, {tokens, dim}, 1)},
          [](const Values& v) -> Values { return {oracle::RmsNorm(v[0], v[1], kEps)}; }, options);
    }
  }
}

TEST(RmsNorm, AddsAnOffsetToTheWeight) {
  constexpr float kEps = 0.25F;
  for (const GradientCheckOptions& options : kDtypes) {
    RmsNorm norm("norm", 5, kEps, 1.0F);
    EXPECT_EQ(norm.parameters()[0]->initializer.mean, 0.0F);
    CheckGradients(
        norm, {TestTensor(options.dtype, {3, 5}, 1)},
        [](const Values& v) -> Values {
          Doubles gain = v[1];
          for (double& value : gain) value += 1.0;
          return {oracle::RmsNorm(v[0], gain, kEps)};
        },
        options);
  }
}

TEST(RmsNorm, RoundsBeforeItMultipliesWithTheWeight) {
  RmsNorm norm("norm", 1, 0.0F);
  const MaterializedParameters memory(norm, 0, DType::kBF16, DType::kF32);
  *norm.parameters()[0]->data.As<BF16>() = ToBF16(1.5F);
  const Tensor x = Tensor::Empty(DType::kBF16, {1, 1});
  *x.As<BF16>() = ToBF16(3.0F);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, norm.Forward(invocation, {x}));
  EXPECT_EQ(ToFloat(*y[0].As<BF16>()), 1.5F);
}

TEST(LayerNorm, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    for (const auto& [tokens, dim] :
         {std::pair<int64_t, int64_t>{1, 2}, {3, 5}, {2, 32}, {5, 67}, {130, 3}}) {
      constexpr float kEps = 0.25F;
      LayerNorm norm("norm", dim, kEps);
      CheckGradients(
          norm, {TestTensor(options.dtype, {tokens, dim}, 1)},
          [](const Values& v) -> Values { return {oracle::LayerNorm(v[0], v[1], v[2], kEps)}; }, options);
    }
  }
}

TEST(LayerNorm, AcceptsZeroTokensAndRowsOfOneValue) {
  LayerNorm norm("norm", 1, 1e-6F);
  const MaterializedParameters memory(norm, 0, DType::kF32, DType::kF32);
  *norm.parameters()[1]->data.As<float>() = 3.0F;
  for (const int64_t tokens : {0, 2}) {
    Invocation invocation;
    ASSERT_OK_AND_ASSIGN(const Tensors y,
                         norm.Forward(invocation, {TestTensor(DType::kF32, {tokens, 1}, 1)}));
    for (int64_t i = 0; i < tokens; ++i) EXPECT_EQ(y[0].As<float>()[i], 3.0F);
    ASSERT_OK_AND_ASSIGN(const Tensors dx, norm.Backward(invocation, y));
    for (int64_t i = 0; i < tokens; ++i) EXPECT_EQ(dx[0].As<float>()[i], 0.0F);
  }
}

TEST(GatedUnit, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    GatedUnit activation("activation");
    CheckGradients(
        activation, {TestTensor(options.dtype, {3, 37}, 1), TestTensor(options.dtype, {3, 37}, 2)},
        [](const Values& v) -> Values { return {oracle::SwiGlu(v[0], v[1])}; }, options);
  }
}

Doubles GeluOracle(const Doubles& x) {
  Doubles y;
  for (const double value : x) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (value + 0.044715 * value * value * value);
    y.push_back(0.5 * value * (1.0 + std::tanh(inner)));
  }
  return y;
}

TEST(GatedUnit, HasTheSlopeOfTheTanhApproximation) {
  for (const GradientCheckOptions& options : kDtypes) {
    GatedUnit activation("activation", GateActivation::kGeluTanh);
    CheckGradients(
        activation, {TestTensor(options.dtype, {3, 37}, 1), TestTensor(options.dtype, {3, 37}, 2)},
        [](const Values& v) -> Values {
          Doubles y = GeluOracle(v[0]);
          for (size_t i = 0; i < y.size(); ++i) y[i] *= v[1][i];
          return {y};
        },
        options);
  }
}

TEST(GatedUnit, StaysFiniteForHugeGates) {
  const Tensor gate = Tensor::Empty(DType::kF32, {4});
  const Tensor up = Tensor::Empty(DType::kF32, {4});
  const float gates[] = {-1e30F, -200.0F, 200.0F, 1e30F};
  for (int i = 0; i < 4; ++i) {
    gate.As<float>()[i] = gates[i];
    up.As<float>()[i] = 1.0F;
  }
  GatedUnit activation("activation");
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, activation.Forward(invocation, {gate, up}));
  EXPECT_NEAR(y[0].As<float>()[0], 0.0F, 1e-6F);
  EXPECT_NEAR(y[0].As<float>()[1], 0.0F, 1e-6F);
  EXPECT_EQ(y[0].As<float>()[2], 200.0F);
  EXPECT_EQ(y[0].As<float>()[3], 1e30F);
}

TEST(Gelu, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    Gelu gelu("gelu");
    CheckGradients(
        gelu, {TestTensor(options.dtype, {3, 37}, 1)},
        [](const Values& v) -> Values { return {GeluOracle(v[0])}; }, options);
  }
}

TEST(Gelu, StaysFiniteForHugeInputs) {
  const Tensor x = Tensor::Empty(DType::kF32, {2});
  const Tensor dy = Tensor::Empty(DType::kF32, {2});
  x.As<float>()[0] = -1e30F;
  x.As<float>()[1] = 1e30F;
  dy.As<float>()[0] = dy.As<float>()[1] = 1.0F;
  Gelu gelu("gelu");
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, gelu.Forward(invocation, {x}));
  ASSERT_OK_AND_ASSIGN(const Tensors dx, gelu.Backward(invocation, {dy}));
  EXPECT_NEAR(y[0].As<float>()[0], 0.0F, 1e-6F);
  EXPECT_EQ(y[0].As<float>()[1], 1e30F);
  EXPECT_NEAR(dx[0].As<float>()[0], 0.0F, 1e-6F);
  EXPECT_EQ(dx[0].As<float>()[1], 1.0F);
}

TEST(Transpose, SwapsTheLastTwoDims) {
  for (const GradientCheckOptions& options : kDtypes) {
    Transpose transpose("swap");
    CheckGradients(
        transpose, {TestTensor(options.dtype, {2, 3, 5}, 1)},
        [](const Values& v) -> Values {
          Doubles y;
          for (size_t i = 0; i < 30; ++i) y.push_back(v[0][i / 15 * 15 + i % 3 * 5 + i % 15 / 3]);
          return {y};
        },
        options);
  }
}

TEST(Mlp, PassesItsInputsThroughAllItsLayers) {
  for (const GradientCheckOptions& options : kDtypes) {
    Mlp mlp("mlp", 5, 7);
    EXPECT_EQ(mlp.AllParameters()[1]->name, "mlp.down.weight");
    CheckGradients(
        mlp, {TestTensor(options.dtype, {4, 5}, 1)},
        [](const Values& v) -> Values {
          return {oracle::Linear(GeluOracle(oracle::Linear(v[0], v[1], 5, 7)), v[2], 7, 5)};
        },
        options);
  }
}

// Mistakes of a caller are errors with the module's path and both sizes.
TEST(Layers, RejectInputsOfAnotherWidthDtypeOrNumber) {
  const auto add = [](Sequential& model, const char* path) -> Linear& {
    return model.Add<Linear>(path, 8, 5);
  };
  Sequential model("model");
  Linear& up = add(model, "layers.1.mlp.up");
  LayerNorm norm("model.norm", 8, 1e-5F);
  RmsNorm rms("model.rms", 8, 1e-5F);
  Gelu gelu("model.gelu");
  Transpose swap("model.swap");
  GatedUnit gate("model.gate");
  Residual residual("model.residual");
  add(residual, "up");
  Embedding embedding("model.embed", 11, 8);
  LmHeadLoss head("head", 11, 8);
  std::vector<MaterializedParameters> memory;
  for (Module* module : std::vector<Module*>{&model, &norm, &rms, &residual, &embedding, &head}) {
    memory.emplace_back(*module, 1, DType::kF32, DType::kF32);
  }
  const auto f32 = [](Shape shape) { return TestTensor(DType::kF32, std::move(shape), 1); };
  const auto expect = [](Module& module, Tensors inputs, const char* message) {
    Invocation pass;
    EXPECT_THAT(module.Forward(pass, std::move(inputs)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect(model, {f32({2, 3, 6})}, "model.layers.1.mlp.up: input [2, 3, 6] has 6 columns, the weight takes 8");
  expect(norm, {f32({6})}, "model.norm: input [6] has 6 columns");
  expect(rms, {f32({2, 6})}, "model.rms: input [2, 6] has 6 columns");
  expect(head, {f32({3, 6}), TestIds({3}, 11, 1)}, "head: input [3, 6] has 6 columns");
  expect(head, {f32({3, 8}), TestIds({2}, 11, 1)}, "pass one target per token");
  expect(head, {f32({3, 8})}, "head: logits have no backward");
  expect(up, {TestTensor(DType::kBF16, {2, 8}, 1)},
         "up: input is bf16, but model.layers.1.mlp.up.weight is f32");
  expect(gelu, {TestIds({3}, 7, 1)}, "model.gelu: input is i32, the module takes f32, bf16 or f16");
  expect(up, {TestIds({8}, 7, 1)}, "up: input is i32");
  expect(up, {}, "up: the number of inputs is 0, the module takes 1");
  expect(gelu, {Tensor()}, "model.gelu: input 0 is an undefined tensor");
  expect(up, {f32({})}, "up: input has the shape [], the module takes at least 1 dim");
  expect(swap, {f32({4})}, "model.swap: input has the shape [4], the module takes at least 2 dims");
  const Tensor wide = f32({8, 2});
  expect(up, {wide.Window(wide.view().Permute({1, 0}))}, "up: input of shape [2, 8] is not contiguous");
  expect(gate, {f32({2, 3}), f32({2, 4})}, "model.gate: gate [2, 3] of f32 and up [2, 4] of f32");
  expect(residual, {f32({2, 8})}, "model.residual: input [2, 8] of f32 cannot be added");
  expect(embedding, {f32({3})}, "model.embed must be a contiguous tensor of i32");
}

TEST(Layers, RejectGradientsThatDoNotFitTheirOutputs) {
  Linear qkv("attn.qkv", 6, {{"q.weight", 4}, {"k.weight", 2}});
  const MaterializedParameters memory(qkv, 1, DType::kF32, DType::kF32);
  const Tensor q = TestTensor(DType::kF32, {3, 4}, 1);
  const Tensor k = TestTensor(DType::kF32, {3, 2}, 2);
  Invocation pass;
  ASSERT_OK(qkv.Forward(pass, {TestTensor(DType::kF32, {3, 6}, 3)}));
  const auto expect = [&](Tensors gradients, const char* message) {
    EXPECT_THAT(qkv.Backward(pass, std::move(gradients)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect({k, k}, "attn.qkv: the gradient of output 0 is [3, 2] of f32, the output [3, 4] of f32");
  expect({TestTensor(DType::kBF16, {3, 4}, 1), k}, "the gradient of output 0 is [3, 4] of bf16");
  expect({q, k, k}, "attn.qkv: the number of gradients is 3, that of the outputs 2");
  expect({}, "attn.qkv: the number of gradients is 0, that of the outputs 2");
  ASSERT_OK(qkv.Backward(pass, {q, k}));
  EXPECT_THAT(qkv.Backward(pass, {q, k}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("attn.qkv: no forward waits for this backward")));
  ASSERT_OK(qkv.Forward(pass, {TestTensor(DType::kF32, {3, 6}, 3)}));
  expect({q}, "attn.qkv: the number of gradients is 1, that of the outputs 2");
  ASSERT_OK(qkv.Forward(pass, {TestTensor(DType::kF32, {3, 6}, 3)}));
  expect({q, Tensor()}, "attn.qkv: the gradient of output 1 is an undefined tensor");
}

TEST(Layers, RejectParametersWithoutMemory) {
  const Tensor x = TestTensor(DType::kF32, {3, 6}, 1);
  Linear linear("mlp.up", 6, 4);
  Embedding embedding("embed", 7, 4);
  Invocation pass;
  EXPECT_THAT(linear.Forward(pass, {x}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("mlp.up: mlp.up.weight is used while it is sharded")));
  EXPECT_THAT(embedding.Forward(pass, {TestIds({3}, 7, 1)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("embed: embed.weight is used")));
  linear.parameters()[0]->requires_grad = false;
  const MaterializedParameters memory(linear, 1, DType::kF32, DType::kF32);
  linear.parameters()[0]->requires_grad = true;
  Invocation trained;
  ASSERT_OK(linear.Forward(trained, {x}));
  EXPECT_THAT(linear.Backward(trained, {TestTensor(DType::kF32, {3, 4}, 2)}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("mlp.up: mlp.up.weight has no memory for its gradient")));
}

TEST(Layers, AcceptZeroTokens) {
  Gelu gelu("gelu");
  Transpose transpose("transpose");
  Mlp mlp("mlp", 3, 4);
  const MaterializedParameters memory(mlp, 1, DType::kF32, DType::kF32);
  for (Module* layer :
       {static_cast<Module*>(&gelu), static_cast<Module*>(&transpose), static_cast<Module*>(&mlp)}) {
    const Tensor x = Tensor::Empty(DType::kF32, {2, 0, 3});
    Invocation invocation;
    ASSERT_OK_AND_ASSIGN(const Tensors y, layer->Forward(invocation, {x}));
    EXPECT_EQ(y[0].elements(), 0) << layer->name();
    ASSERT_OK_AND_ASSIGN(const Tensors dx, layer->Backward(invocation, y));
    EXPECT_EQ(dx[0].shape(), x.shape()) << layer->name();
  }
}

TEST(Residual, AddsItsInput) {
  for (const GradientCheckOptions& options : kDtypes) {
    Residual residual("block");
    residual.Add<Linear>("linear", 5, 5);
    CheckGradients(
        residual, {TestTensor(options.dtype, {4, 5}, 1)},
        [](const Values& v) -> Values {
          Doubles y = oracle::Linear(v[0], v[1], 5, 5);
          for (size_t i = 0; i < y.size(); ++i) y[i] += v[0][i];
          return {y};
        },
        options);
  }
}

TEST(Residual, OverwritesNeitherItsInputNorItsChildrensOutput) {
  Residual identity("identity");  // f(x) is x itself.
  const Tensor x = TestTensor(DType::kF32, {4}, 1);
  const float first = x.As<float>()[0];
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, identity.Forward(invocation, {x}));
  EXPECT_EQ(x.As<float>()[0], first);
  EXPECT_EQ(y[0].As<float>()[0], 2 * first);
}

TEST(Embedding, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    Embedding embedding("embedding", 11, 6);
    CheckGradients(
        embedding, {TestIds({3, 9}, 11, 1)},
        [](const Values& v) -> Values { return {oracle::Embedding(v[0], v[1], 6)}; }, options);
  }
}

TEST(Embedding, MultipliesRowsAndTheirGradientsByItsScale) {
  for (const GradientCheckOptions& options : kDtypes) {
    Embedding embedding("embedding", 11, 6, {}, 2.5F);
    CheckGradients(
        embedding, {TestIds({3, 9}, 11, 1)},
        [](const Values& v) -> Values {
          Doubles y = oracle::Embedding(v[0], v[1], 6);
          for (double& value : y) value *= 2.5;
          return {y};
        },
        options);
  }
}

TEST(Embedding, RejectsATokenOutsideTheVocabulary) {
  Embedding embedding("model.embed_tokens", 4, 2);
  const MaterializedParameters memory(embedding, 0, DType::kF32, DType::kF32);
  for (const int32_t wrong : {4, -1}) {
    const Tensor ids = Tensor::Zeros(DType::kI32, {1, 3});
    ids.As<int32_t>()[2] = wrong;
    Invocation invocation;
    EXPECT_THAT(
        embedding.Forward(invocation, {ids}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("token ", wrong, " at position 2 is outside the vocabulary of 4"))));
  }
}

TEST(PositionEmbedding, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    PositionEmbedding positions("wpe", 5, 3);
    CheckGradients(
        positions, {TestTensor(options.dtype, {2, 4, 3}, 1)},
        [](const Values& v) -> Values {
          Doubles y = v[0];
          for (size_t i = 0; i < y.size(); ++i) y[i] += v[1][i % 12];
          return {y};
        },
        options);
  }
}

// Tokens of a shard, in the order of the shard: positions 6 and 7, then 0 and 1.
TEST(PositionEmbedding, FollowsThePositionsOfTheSequence) {
  PositionEmbedding positions("wpe", 8, 3);
  const MaterializedParameters memory(positions, 1, DType::kF32, DType::kF32);
  const Tensor x = Tensor::Zeros(DType::kF32, {1, 4, 3});
  Invocation pass;
  pass.SetSequence(std::make_shared<SequenceParts>(SequenceParts{{{{0, 6, 2}, {0, 0, 2}}, {{0, 2, 4}}}, 0}));
  ASSERT_OK_AND_ASSIGN(const Tensors y, positions.Forward(pass, {x}));
  const auto* table = positions.parameters()[0]->data.As<float>();
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(y[0].As<float>()[i], table[i < 6 ? 18 + i : i - 6]);
  ASSERT_OK(positions.Backward(pass, {TestTensor(DType::kF32, {1, 4, 3}, 2)}));
  const auto* gradient = positions.parameters()[0]->grad.As<float>();
  for (size_t i = 6; i < 18; ++i) EXPECT_EQ(gradient[i], 0.0F);  // Positions of the other rank.
  EXPECT_NE(gradient[0], 0.0F);
  EXPECT_NE(gradient[20], 0.0F);
}

TEST(PositionEmbedding, RejectsASequenceBeyondItsTable) {
  PositionEmbedding positions("transformer.wpe", 4, 3);
  const MaterializedParameters memory(positions, 1, DType::kF32, DType::kF32);
  Invocation pass;
  EXPECT_THAT(positions.Forward(pass, {TestTensor(DType::kF32, {1, 5, 3}, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("transformer.wpe: the sequence has 5 positions, the table 4")));
  EXPECT_THAT(positions.Forward(pass, {TestTensor(DType::kF32, {4, 3}, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the module takes at least 3 dims")));
}

TEST(Heads, SplitColumnsIntoWindowsAndCopyTheirGradientsBack) {
  SplitHeads split("split", 3, 2);
  const Tensor x = TestTensor(DType::kF32, {2, 3, 18}, 1);
  Invocation pass;
  ASSERT_OK_AND_ASSIGN(const Tensors parts, split.Forward(pass, {x}));
  ASSERT_EQ(parts.size(), 3U);
  Tensors gradients;
  for (size_t part = 0; part < 3; ++part) {
    EXPECT_EQ(parts[part].shape(), (Shape{2, 3, 2, 3}));
    gradients.push_back(parts[part].Copy());
    for (int64_t i = 0; i < 36; ++i) {
      EXPECT_EQ(gradients[part].As<float>()[i],
                x.As<float>()[i / 6 * 18 + static_cast<int64_t>(part) * 6 + i % 6]);
    }
  }
  ASSERT_OK_AND_ASSIGN(const Tensors dx, split.Backward(pass, gradients));
  EXPECT_EQ(dx[0].shape(), x.shape());
  for (int64_t i = 0; i < x.elements(); ++i) EXPECT_EQ(dx[0].As<float>()[i], x.As<float>()[i]);
  EXPECT_THAT(
      split.Forward(pass, {TestTensor(DType::kF32, {2, 3, 16}, 1)}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("split: input has the shape [2, 3, 16]")));
}

TEST(Heads, MergeIntoColumns) {
  MergeHeads merge("merge", 2);
  CheckGradients(merge, {TestTensor(DType::kBF16, {2, 3, 2, 4}, 1)},
                 [](const Values& v) -> Values { return {v[0]}; }, {.dtype = DType::kBF16});
  Invocation pass;
  EXPECT_THAT(merge.Forward(pass, {TestTensor(DType::kF32, {2, 3, 4, 4}, 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[batch, tokens, 2 heads, head_dim]")));
}

TEST(LmHeadLoss, HasGradientsThatMatchFiniteDifferences) {
  for (const GradientCheckOptions& options : kDtypes) {
    for (const int64_t vocab_size : {1, 2, 37, 70}) {
      LmHeadLoss head("lm_head", vocab_size, 6);
      CheckGradients(
          head, {TestTensor(options.dtype, {2, 5, 6}, 1), TestIds({2, 5}, vocab_size, 2)},
          [=](const Values& v) -> Values {
            return {{oracle::CrossEntropy(oracle::Linear(v[0], v[2], 6, vocab_size), v[1], vocab_size)}};
          },
          options);
    }
  }
}

TEST(LmHeadLoss, GivesTheSameLossWhenTokensComeInSeveralChunks) {
  // A chunk has 64 tokens for a vocabulary of this size.
  constexpr int64_t kVocab = 20000;
  constexpr int64_t kTokens = 70;
  LmHeadLoss head("lm_head", kVocab, 3);
  CheckGradients(head, {TestTensor(DType::kF32, {kTokens, 3}, 1), TestIds({kTokens}, kVocab, 2)},
                 [](const Values& v) -> Values {
                   return {{oracle::CrossEntropy(oracle::Linear(v[0], v[2], 3, kVocab), v[1], kVocab)}};
                 },
                 {.elements = 2});
}

TEST(LmHeadLoss, ScalesLossAndGradientsAlike) {
  LmHeadLoss head("lm_head", 9, 4);
  const MaterializedParameters memory(head, 3, DType::kF32, DType::kF32);
  const Tensor hidden = TestTensor(DType::kF32, {6, 4}, 1);
  const Tensor targets = TestIds({6}, 9, 2);
  const Tensor one = Tensor::Empty(DType::kF32, {});
  *one.As<float>() = 1.0F;
  const auto run = [&](float scale, Doubles& gradient) {
    Invocation invocation(/*gradients=*/true, scale);
    const auto loss = head.Forward(invocation, {hidden, targets});
    const auto gradients = head.Backward(invocation, {one});
    const auto* values = (*gradients)[0].As<float>();
    gradient.assign(values, values + 24);
    return *(*loss)[0].As<float>();
  };
  Doubles whole;
  Doubles quarter;
  EXPECT_EQ(run(1.0F, whole), 4.0F * run(0.25F, quarter));
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], 4.0 * quarter[i], 1e-6);
}

// Half of a million targets, of which most are in other microbatches: most gradients are below the smallest
// number of f16, unless they have a loss scale.
TEST(LmHeadLoss, KeepsSmallGradientsInF16WithALossScale) {
  LmHeadLoss head("lm_head", 64, 4);
  const Tensor targets = TestIds({6}, 64, 2);
  const auto gradient_in = [&](DType dtype, float loss_gradient) {
    const MaterializedParameters memory(head, 3, dtype, DType::kF32);
    Invocation invocation(/*gradients=*/true, 0x1p-19F);
    EXPECT_OK(head.Forward(invocation, {TestTensor(dtype, {6, 4}, 1), targets}).status());
    const Tensor scale = Tensor::Empty(DType::kF32, {});
    *scale.As<float>() = loss_gradient;
    EXPECT_OK(head.Backward(invocation, {scale}).status());
    const auto* values = head.parameters()[0]->grad.As<float>();
    Doubles gradient(values, values + 64 * 4);
    for (double& value : gradient) value /= loss_gradient;
    return gradient;
  };
  const Doubles exact = gradient_in(DType::kF32, 1.0F);
  const Doubles scaled = gradient_in(DType::kF16, 0x1p16F);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(scaled[i], exact[i], 0x1p-19 * 0x1p-9);
}

TEST(LmHeadLoss, GivesIgnoredTargetsNeitherLossNorGradient) {
  LmHeadLoss head("lm_head", 9, 4);
  const MaterializedParameters memory(head, 3, DType::kF32, DType::kF32);
  const Tensor hidden = TestTensor(DType::kF32, {5, 4}, 1);
  const Tensor targets = TestIds({5}, 9, 2);
  const auto loss_of = [&](const Tensor& rows, const Tensor& wanted, bool gradients) {
    Invocation invocation(gradients);
    return *(*head.Forward(invocation, {rows, wanted}))[0].As<float>();
  };
  const float whole = loss_of(hidden, targets, true);
  const auto tail = [](const Tensor& tensor) { return Tensor::Borrow(tensor.view().Slice(0, 2, 3)); };
  const float of_tail = loss_of(tail(hidden), tail(targets), true);

  for (int i = 0; i < 2; ++i) targets.As<int32_t>()[i] = kIgnoredTarget;
  EXPECT_FLOAT_EQ(loss_of(hidden, targets, false), of_tail);
  EXPECT_NE(of_tail, whole);
  const Tensor one = Tensor::Empty(DType::kF32, {});
  *one.As<float>() = 1.0F;
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors loss, head.Forward(invocation, {hidden, targets}));
  EXPECT_FLOAT_EQ(*loss[0].As<float>(), of_tail);
  ASSERT_OK_AND_ASSIGN(const Tensors gradients, head.Backward(invocation, {one}));
  const absl::Span<const float> values(gradients[0].As<float>(), 20);
  EXPECT_THAT(values.subspan(0, 8), ::testing::Each(0.0F));
  EXPECT_THAT(values.subspan(8), ::testing::Each(::testing::Ne(0.0F)));
}

TEST(LmHeadLoss, IsStableForLargeLogits) {
  LmHeadLoss head("lm_head", 3, 1);
  const MaterializedParameters memory(head, 0, DType::kF32, DType::kF32);
  const float weights[] = {1000.0F, 0.0F, -1000.0F};
  std::copy(weights, weights + 3, head.parameters()[0]->data.As<float>());
  const Tensor hidden = Tensor::Empty(DType::kF32, {1, 1});
  *hidden.As<float>() = 1.0F;
  const Tensor targets = Tensor::Zeros(DType::kI32, {1});
  *targets.As<int32_t>() = 2;
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors loss, head.Forward(invocation, {hidden, targets}));
  EXPECT_FLOAT_EQ(*loss[0].As<float>(), 2000.0F);
}

TEST(LmHeadLoss, RejectsATargetOutsideTheVocabulary) {
  LmHeadLoss head("lm_head", 3, 1);
  const MaterializedParameters memory(head, 0, DType::kF32, DType::kF32);
  const Tensor targets = Tensor::Zeros(DType::kI32, {2});
  targets.As<int32_t>()[1] = 7;
  Invocation invocation;
  EXPECT_THAT(
      head.Forward(invocation, {Tensor::Zeros(DType::kF32, {2, 1}), targets}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("targets of lm_head: token 7 at position 1")));
}

}  // namespace
}  // namespace weft
