// All layers share these: errors of their callers, and inputs without tokens.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/dropout.h"
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
#include "weft/nn/rope.h"
#include "weft/nn/sequential.h"
#include "weft/nn/transpose.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// A layer with inputs that it accepts.
struct Layer {
  std::shared_ptr<Module> module;
  Tensors inputs;
};

// Layers that take contiguous gradients only.
std::vector<Layer> LayersWithContiguousGradients() {
  const auto x = [] { return TestTensor(DType::kF32, {2, 3, 4}, 1); };
  const auto heads = [] { return TestTensor(DType::kF32, {2, 3, 2, 2}, 1); };
  const auto frequencies = std::make_shared<RopeTable>(RopeFrequencies(2, 10000.0, std::nullopt));
  auto adapted = std::make_shared<Linear>("adapted", 4, 6);
  adapted->AddAdapter(0, 2, 1.0F);
  auto residual = std::make_shared<Residual>("residual");
  residual->Add<Linear>("linear", 4, 4);
  return {{std::make_shared<Linear>("linear", 4, 6), {x()}},
          {std::move(adapted), {x()}},
          {std::make_shared<RmsNorm>("rms_norm", 4, 1e-5F), {x()}},
          {std::make_shared<LayerNorm>("layer_norm", 4, 1e-5F), {x()}},
          {std::make_shared<Gelu>("gelu"), {x()}},
          {std::make_shared<GatedUnit>("gated_unit"), {x(), x()}},
          {std::make_shared<Embedding>("embedding", 7, 4), {TestIds({2, 3}, 7, 1)}},
          {std::make_shared<PositionEmbedding>("position_embedding", 3, 4), {x()}},
          {std::make_shared<Dropout>("dropout", 0.5F), {x()}},
          {std::make_shared<MergeHeads>("merge_heads", 2), {heads()}},
          {std::make_shared<Rope>("rope", frequencies), {heads()}},
          {std::move(residual), {x()}}};
}

// A gradient whose rows are apart in memory.
Tensor StridedGradient(const Shape& shape) {
  Shape wide = shape;
  wide.back() *= 2;
  const Tensor memory = TestTensor(DType::kF32, wide, 2);
  return memory.Window(memory.view().Slice(-1, 0, shape.back()));
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

TEST(Layers, RejectGradientsThatAreNotContiguous) {
  for (const Layer& layer : LayersWithContiguousGradients()) {
    Module& module = *layer.module;
    const MaterializedParameters memory(module, 1, DType::kF32, DType::kF32);
    Invocation pass;
    pass.SetRandomKey(MakeRandomKey(1, 0, 0, 2));
    ASSERT_OK_AND_ASSIGN(const Tensors y, module.Forward(pass, layer.inputs));
    const Tensor strided = StridedGradient(y[0].shape());
    EXPECT_THAT(module.Backward(pass, {strided}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         absl::StrCat(module.name(), ": the gradient of output 0, of shape ",
                                      ToString(y[0].shape()), ", is not contiguous; pass its Copy()")));
    EXPECT_OK(module.Backward(pass, {strided.Copy()})) << module.name();
    EXPECT_TRUE(pass.empty()) << module.name();
  }
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

TEST(Layers, RepeatABackwardAfterTheirParametersAreUnsharded) {
  std::vector<Layer> layers = LayersWithContiguousGradients();
  layers.push_back({std::make_shared<LmHeadLoss>("head", 7, 4),
                    {TestTensor(DType::kF32, {2, 3, 4}, 1), TestIds({2, 3}, 7, 1)}});
  for (const Layer& layer : layers) {
    Module& module = *layer.module;
    const MaterializedParameters memory(module, 1, DType::kF32, DType::kF32);
    // The memory of the gradient for modules whose backward does not read the weight.
    const bool reads_weight =
        dynamic_cast<Embedding*>(&module) == nullptr && dynamic_cast<PositionEmbedding*>(&module) == nullptr;
    for (const auto& parameter : module.AllParameters()) {
      TensorView& view = reads_weight ? parameter->data : parameter->grad;
      Invocation pass;
      ASSERT_OK_AND_ASSIGN(const Tensors y, module.Forward(pass, layer.inputs));
      const Tensor dy = TestTensor(DType::kF32, y[0].shape(), 2);
      void* const unsharded = std::exchange(view.data, nullptr);
      EXPECT_THAT(module.Backward(pass, {dy}),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(parameter->name)));
      view.data = unsharded;
      EXPECT_OK(module.Backward(pass, {dy})) << module.name();
      EXPECT_TRUE(pass.empty()) << module.name();
    }
  }
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

}  // namespace
}  // namespace weft
