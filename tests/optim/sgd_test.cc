#include "weft/optim/sgd.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/optim/torch_values.h"
#include "tests/support/status_matchers.h"
#include "weft/optim/sharded_sgd.h"

namespace weft {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

using Five = std::array<float, 5>;

// Values after three steps of torch.optim.SGD (2.13.0).
struct TorchRun {
  SgdOptions options;
  Five expected;
};
const TorchRun kRuns[] = {
    {{.lr = 0.1, .weight_decay = 0.05},
     {-0.309504956F, 0.391124874F, 0.307669789F, 0.42520979F, 0.140764698F}},
    {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05},
     {-0.13830246F, 0.357687384F, 0.264397353F, 0.533904374F, 0.057824336F}},
    {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true},
     {0.0135654872F, 0.321232587F, 0.21257174F, 0.628248572F, -0.0241862256F}},
};

TEST(SgdStep, GivesTheValuesOfTorch) {
  for (const TorchRun& run : kRuns) {
    std::vector<float> param = testing::FixtureParam(5);
    std::vector<float> buffer(5);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> grad = testing::FixtureGrad(step, 5);
      for (float& g : grad) g *= 4;  // A power of two, which the scale takes back.
      SgdStep({{param.data(), grad.data(), buffer.data(), 5}}, run.options, 0.25);
    }
    EXPECT_THAT(param, Pointwise(FloatNear(1e-7F), run.expected));
  }
}

TEST(ShardedSgd, HasAMomentumBufferOnlyWithMomentum) {
  Parameter matrix, vector;
  matrix.shape = {2, 2};
  vector.shape = {2};
  std::vector<float> data(6, 1.0F), grad(6, 1.0F);
  const std::vector<ShardView> shards = {{&matrix, {0, 0, 0, 1, 4, 4}, data.data(), grad.data()},
                                         {&vector, {1, 4, 0, 1, 2, 2}, data.data() + 4, grad.data() + 4}};
  ShardedSgd optimizer(shards, {.lr = 0.5, .momentum = 0.5}, {{HasAtMostOneDim, {.lr = 0.25}}});
  ASSERT_EQ(optimizer.State(0).size(), 1);
  EXPECT_EQ(optimizer.State(0)[0].parameter, &matrix);
  ASSERT_OK(optimizer.Step(shards));
  ASSERT_OK(optimizer.Step(shards, {{}, {.lr = 0.5}}));
  EXPECT_FLOAT_EQ(data[0], 1 - 0.5F - 0.75F);
  EXPECT_FLOAT_EQ(data[4], 1 - 0.25F - 0.5F);
  EXPECT_FLOAT_EQ(optimizer.State(0)[0].data[0], 1.5F);
}

// A rank without shards would otherwise go on alone.
TEST(ShardedSgd, EndsAtNesterovWithoutMomentumBeforeAnyUpdate) {
  EXPECT_DEATH(ShardedSgd({}, {.nesterov = true}), "nesterov needs momentum");
  EXPECT_DEATH(ShardedSgd({}, {.momentum = 0.9}, {{HasAtMostOneDim, {.nesterov = true}}}),
               "nesterov needs momentum");
}

}  // namespace
}  // namespace weft
