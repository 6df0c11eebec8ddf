// Layers composed of other layers.

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/gradient_check.h"
#include "tests/nn/oracles.h"
#include "tests/support/status_matchers.h"
#include "weft/core/strided_copy.h"
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/nn/materialize.h"
#include "weft/nn/mlp.h"
#include "weft/nn/rope.h"
#include "weft/nn/sequential.h"

namespace weft {
namespace {

using ::weft::testing::StatusIs;

TEST(Mlp, PassesItsInputsThroughAllItsLayers) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
    Mlp mlp("mlp", 5, 7);
    EXPECT_EQ(mlp.AllParameters()[1]->name, "mlp.down.weight");
    CheckGradients(
        mlp, {TestTensor(options.dtype, {4, 5}, 1)},
        [](const Values& v) -> Values {
          return {oracle::Linear(oracle::Gelu(oracle::Linear(v[0], v[1], 5, 7)), v[2], 7, 5)};
        },
        options);
  }
}

TEST(Residual, AddsItsInput) {
  for (const GradientCheckOptions& options : kGradientDtypes) {
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

// [batch, tokens, heads, head_dim], such that a Rope of four elements accepts it.
Tensor TestHeads(int64_t salt) { return TestTensor(DType::kF32, {1, 3, 1, 4}, salt); }

std::shared_ptr<RopeTable> TestTable() {
  return std::make_shared<RopeTable>(RopeFrequencies(4, 10000.0, std::nullopt));
}

TEST(Residual, AddsItsGradientThoughAChildOverwritesTheOneThatItIsGiven) {
  for (const bool below_identities : {false, true}) {
    Residual residual("block");
    // The chain's output is always zero, and so is its gradient.
    residual.Add<Linear>("zero", 4, 4, Initializer{Initializer::Kind::kConstant, 0.0F, 0.0F});
    residual.Add<Rope>("rope", TestTable());
    if (below_identities) residual.Add<Dropout>("dropout", 0.0F);
    const MaterializedParameters memory(residual, 1, DType::kF32, DType::kF32);
    Invocation invocation;
    ASSERT_OK(residual.Forward(invocation, {TestHeads(1)}));
    const Tensor dy = TestHeads(2);
    ASSERT_OK_AND_ASSIGN(const Tensors dx, residual.Backward(invocation, {dy}));
    EXPECT_EQ(testing::ToDoubleValues(dy.view()), testing::ToDoubleValues(TestHeads(2).view()));
    EXPECT_EQ(testing::ToDoubleValues(dx[0].view()), testing::ToDoubleValues(dy.view()));
  }
}

TEST(Residual, RefusesAChildThatWouldOverwriteItsInput) {
  for (const bool after_identity : {false, true}) {
    Residual residual("block");
    if (after_identity) residual.Add<Dropout>("dropout", 0.0F);
    residual.Add<Rope>("rope", TestTable());
    Invocation invocation;
    const Tensor x = TestHeads(1);
    EXPECT_THAT(
        residual.Forward(invocation, {x}),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 "block.rope would overwrite a tensor that the residual connection 'block' adds after "
                 "its children have run; let an earlier child write to new memory"));
    EXPECT_EQ(testing::ToDoubleValues(x.view()), testing::ToDoubleValues(TestHeads(1).view()));
    // The input can be overwritten again.
    EXPECT_OK(residual.children().back()->Forward(invocation, {x}));
  }
}

TEST(Residual, LeavesTheReaderThatAChildHasAddedToItsInput) {
  Residual residual("block");
  Linear& child = residual.Add<Linear>("linear", 4, 4);
  const MaterializedParameters memory(residual, 1, DType::kF32, DType::kF32);
  const std::string use = "a tensor that a peer reads";
  child.AddForwardPreHook([&use](Module&, Invocation& invocation, Tensors& inputs) {
    invocation.AddReader(inputs[0], &use);
    return absl::OkStatus();
  });
  Invocation invocation;
  const Tensor x = TestHeads(1);
  ASSERT_OK(residual.Forward(invocation, {x}));
  EXPECT_THAT(invocation.CheckWritable(x, "rope"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "rope would overwrite " + use));
}

// A tensor of the same values whose rows are apart in memory.
Tensor WithGaps(const Tensor& x) {
  Shape wide = x.shape();
  wide.back() *= 2;
  const Tensor memory = Tensor::Zeros(x.dtype(), wide);
  const Tensor window = memory.Window(memory.view().Slice(-1, 0, x.dim(-1)));
  EXPECT_OK(StridedCopy(x.view(), window.view()));
  return window;
}

// y = x. Neither y nor the gradient of x is contiguous.
class GappedIdentity : public Module {
 public:
  using Module::Module;

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation&, const Tensors& inputs) override {
    return Tensors{WithGaps(inputs[0])};
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation&, const Tensors& output_gradients) override {
    return Tensors{WithGaps(output_gradients[0])};
  }
};

TEST(Residual, AddsOutputsAndGradientsThatAreNotContiguous) {
  Residual residual("block");
  residual.Add<GappedIdentity>("identity");
  const Tensor x = TestTensor(DType::kF32, {3, 4}, 1);
  const Tensor dy = TestTensor(DType::kF32, {3, 4}, 2);
  Invocation invocation;
  ASSERT_OK_AND_ASSIGN(const Tensors y, residual.Forward(invocation, {x}));
  ASSERT_OK_AND_ASSIGN(const Tensors dx, residual.Backward(invocation, {dy}));
  for (int64_t i = 0; i < x.elements(); ++i) {
    EXPECT_EQ(y[0].As<float>()[i], 2 * x.As<float>()[i]) << i;
    EXPECT_EQ(dx[0].As<float>()[i], 2 * dy.As<float>()[i]) << i;
  }
}

}  // namespace
}  // namespace weft
