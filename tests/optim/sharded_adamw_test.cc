#include "weft/optim/sharded_adamw.h"

#include <deque>
#include <limits>
#include <numeric>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ShardViews of whole parameters in ordinary memory.
class Shards {
 public:
  void Add(const std::string& name, const Shape& shape) {
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = name;
    parameter.shape = shape;
    const int64_t count = parameter.elements();
    std::vector<float>& data = data_.emplace_back(count, 1.0F);
    std::vector<float>& grad = grads_.emplace_back(count);
    std::iota(grad.begin(), grad.end(), 1.0F);
    views_.push_back({&parameter, {0, 0, 0, 1, count, count}, data.data(), grad.data()});
  }
  Parameter& parameter(size_t i) { return parameters_[i]; }
  std::vector<ShardView>& views() { return views_; }
  std::vector<float>& data(size_t i) { return data_[i]; }
  std::vector<float>& grad(size_t i) { return grads_[i]; }

 private:
  std::deque<Parameter> parameters_;
  std::deque<std::vector<float>> data_, grads_;
  std::vector<ShardView> views_;
};

Shards MatrixAndNorm() {
  Shards shards;
  shards.Add("block.weight", {3, 2});
  shards.Add("block.norm.weight", {4});
  return shards;
}

TEST(ShardedAdamW, UpdatesEveryShardLikeAdamWStep) {
  Shards shards = MatrixAndNorm();
  const AdamWOptions options{.lr = 0.1, .weight_decay = 0.5};
  ShardedAdamW optimizer(shards.views(), options);
  std::vector<float> param(6, 1.0F), first(6), second(6);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(optimizer.Step(shards.views(), 0.5F));
    AdamWStep({{param.data(), shards.grad(0).data(), first.data(), second.data(), 6}}, options, step, 0.5F);
  }
  EXPECT_EQ(shards.data(0), param);
  EXPECT_EQ(optimizer.steps(), 3);
}

TEST(ShardedAdamW, AppliesTheWeightDecayOfEachParamGroup) {
  Shards shards = MatrixAndNorm();
  for (float& g : shards.grad(0)) g = 0.0F;
  for (float& g : shards.grad(1)) g = 0.0F;
  const AdamWOptions decayed{.lr = 0.1, .weight_decay = 0.5};
  AdamWOptions undecayed = decayed;
  undecayed.weight_decay = 0;
  ShardedAdamW optimizer(shards.views(), decayed, {{HasAtMostOneDim, undecayed}});
  ASSERT_OK(optimizer.Step(shards.views()));
  EXPECT_THAT(shards.data(0), Each(0.95F));
  EXPECT_THAT(shards.data(1), Each(1.0F));
}

TEST(ShardedAdamW, UsesTheFirstParamGroupThatMatches) {
  Shards shards = MatrixAndNorm();
  ShardedAdamW optimizer(shards.views(), {.lr = 0, .weight_decay = 0},
                         {{NameContains({"norm", "bias"}), {.lr = 0.25, .weight_decay = 0}},
                          {HasAtMostOneDim, {.lr = 100, .weight_decay = 0}}});
  ASSERT_OK(optimizer.Step(shards.views()));
  EXPECT_THAT(shards.data(0), Each(1.0F));
  EXPECT_FLOAT_EQ(shards.data(1)[0], 0.75F);  // The first update moves by the learning rate.
}

TEST(ShardedAdamW, UsesALearningRateThatIsSetBetweenSteps) {
  Shards shards = MatrixAndNorm();
  ShardedAdamW optimizer(shards.views(), {.lr = 100, .weight_decay = 0},
                         {{HasAtMostOneDim, {.weight_decay = 0}}});
  for (AdamWOptions& options : optimizer.options()) options.lr = 0.25;
  ASSERT_OK(optimizer.Step(shards.views()));
  EXPECT_FLOAT_EQ(shards.data(0)[0], 0.75F);
  EXPECT_FLOAT_EQ(shards.data(1)[0], 0.75F);
}

// Copies of both moments of a shard.
std::vector<std::vector<float>> MomentsOf(ShardedAdamW& optimizer, size_t shard) {
  std::vector<std::vector<float>> moments;
  for (const ShardView& view : {optimizer.FirstMoments()[shard], optimizer.SecondMoments()[shard]}) {
    moments.emplace_back(view.data, view.data + view.elements());
  }
  return moments;
}

TEST(ShardedAdamW, ChangesNothingOfAFrozenParamGroup) {
  Shards shards = MatrixAndNorm();
  ShardedAdamW optimizer(shards.views(), {.lr = 0.1, .weight_decay = 0.5},
                         {{HasAtMostOneDim, {.lr = 0.1, .weight_decay = 0.5}}});
  ASSERT_OK(optimizer.Step(shards.views()));
  const std::vector<float> matrix = shards.data(0);
  const std::vector<float> norm = shards.data(1);
  const auto matrix_moments = MomentsOf(optimizer, 0);
  const auto norm_moments = MomentsOf(optimizer, 1);
  ASSERT_OK(optimizer.Step(shards.views(), {{.frozen = true}, {}}));
  EXPECT_EQ(shards.data(0), matrix);
  EXPECT_EQ(MomentsOf(optimizer, 0), matrix_moments);
  EXPECT_NE(shards.data(1), norm);
  EXPECT_NE(MomentsOf(optimizer, 1), norm_moments);
  EXPECT_THAT(optimizer.StepsOfShards(), ElementsAre(1, 2));
  EXPECT_EQ(optimizer.steps(), 2);
}

TEST(ShardedAdamW, HasNoMomentsForFrozenParametersBeforeTheirFirstGradient) {
  Shards shards = MatrixAndNorm();
  shards.parameter(0).requires_grad = false;
  float* const gradient = std::exchange(shards.views()[0].grad, nullptr);
  ShardedAdamW optimizer(shards.views(), {.lr = 0.25, .weight_decay = 0});
  ASSERT_OK(optimizer.Step(shards.views()));
  EXPECT_THAT(shards.data(0), Each(1.0F));
  EXPECT_FLOAT_EQ(shards.data(1)[0], 0.75F);
  ASSERT_EQ(optimizer.FirstMoments().size(), 1);
  EXPECT_EQ(optimizer.FirstMoments()[0].parameter->name, "block.norm.weight");
  EXPECT_THAT(optimizer.StepsOfShards(), ElementsAre(0, 1));
  // The update is that of an optimizer whose first step this is.
  shards.views()[0].grad = gradient;
  Shards fresh = MatrixAndNorm();
  ShardedAdamW first_step(fresh.views(), {.lr = 0.25, .weight_decay = 0});
  ASSERT_OK(optimizer.Step(shards.views()));
  ASSERT_OK(first_step.Step(fresh.views()));
  EXPECT_EQ(shards.data(0), fresh.data(0));
  EXPECT_EQ(optimizer.FirstMoments().size(), 2);
  EXPECT_THAT(optimizer.StepsOfShards(), ElementsAre(1, 2));
}

TEST(ShardedAdamW, ContinuesAfterAFreezeAsWithoutIt) {
  Shards frozen = MatrixAndNorm();
  Shards plain = MatrixAndNorm();
  ShardedAdamW first(frozen.views(), {});
  ShardedAdamW second(plain.views(), {});
  ASSERT_OK(first.Step(frozen.views(), {{.frozen = true}}));
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(first.Step(frozen.views()));
    ASSERT_OK(second.Step(plain.views()));
  }
  EXPECT_EQ(frozen.data(0), plain.data(0));
  EXPECT_EQ(frozen.data(1), plain.data(1));
}

TEST(ShardedAdamW, ScalesTheGradientsOfEachParamGroup) {
  Shards both = MatrixAndNorm();
  Shards quarter = MatrixAndNorm();
  Shards half = MatrixAndNorm();
  const AdamWOptions options{.lr = 0.1, .eps = 1.0};  // The scale matters only beside eps.
  ShardedAdamW optimizer(both.views(), options, {{HasAtMostOneDim, options}});
  ShardedAdamW by_quarter(quarter.views(), options);
  ShardedAdamW by_half(half.views(), options);
  ASSERT_OK(optimizer.Step(both.views(), {{.gradient_scale = 0.25F}, {.gradient_scale = 0.5F}}));
  ASSERT_OK(by_quarter.Step(quarter.views(), 0.25F));
  ASSERT_OK(by_half.Step(half.views(), 0.5F));
  EXPECT_EQ(both.data(0), quarter.data(0));
  EXPECT_EQ(both.data(1), half.data(1));
  EXPECT_NE(both.data(0), half.data(0));
}

TEST(ShardedAdamW, DoesNotUpdateShardsWithoutGradients) {
  Shards shards = MatrixAndNorm();
  shards.views()[0].grad = nullptr;
  ShardedAdamW optimizer(shards.views(), {.lr = 0.25, .weight_decay = 0.5});
  ASSERT_OK(optimizer.Step(shards.views()));
  EXPECT_THAT(shards.data(0), Each(1.0F));
  EXPECT_NE(shards.data(1)[0], 1.0F);
}

// A state dict needs the moments by name, and an optimizer that continues from loaded moments.
TEST(ShardedAdamW, ResumesFromACopiedState) {
  Shards one = MatrixAndNorm();
  Shards two = MatrixAndNorm();
  ShardedAdamW first(one.views(), {});
  ShardedAdamW second(two.views(), {});
  ASSERT_OK(first.Step(one.views()));
  for (size_t i = 0; i < 2; ++i) {
    two.data(i) = one.data(i);
    const auto copy = [i](const std::vector<ShardView>& from, const std::vector<ShardView>& to) {
      EXPECT_EQ(from[i].parameter->name, to[i].parameter->name);
      std::copy_n(from[i].data, from[i].elements(), to[i].data);
    };
    copy(first.FirstMoments(), second.FirstMoments());
    copy(first.SecondMoments(), second.SecondMoments());
  }
  second.set_steps(first.steps());
  ASSERT_OK(first.Step(one.views()));
  ASSERT_OK(second.Step(two.views()));
  EXPECT_EQ(one.data(0), two.data(0));
  EXPECT_EQ(one.data(1), two.data(1));
}

TEST(ShardedAdamW, RefusesAScaleThatIsNotFinite) {
  Shards shards = MatrixAndNorm();
  ShardedAdamW optimizer(shards.views(), {.lr = 0.1});
  for (const double scale :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(optimizer.Step(shards.views(), scale),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gradient_scale is")));
  }
  EXPECT_EQ(optimizer.steps(), 0);
  EXPECT_THAT(shards.data(0), Each(1.0F));
}

TEST(ShardedAdamW, RejectsShardsOfAnotherModel) {
  Shards shards = MatrixAndNorm();
  ShardedAdamW optimizer(shards.views(), {});
  Shards fewer;
  fewer.Add("block.weight", {3, 2});
  EXPECT_THAT(std::string(optimizer.Step(fewer.views()).message()), HasSubstr("2 shards was given 1"));
  Shards other = MatrixAndNorm();
  EXPECT_THAT(std::string(optimizer.Step(other.views()).message()),
              HasSubstr("shard 0 (of 'block.weight') is not the one"));
  EXPECT_EQ(optimizer.steps(), 0);
}

// In place, the update writes the bf16 weights of the parameters that it updates, unless one of a group is
// frozen. Private images are cast when they are gathered.
TEST(ShardedAdamW, GivesTheBitsOfPrivateImagesInPlaceInBf16) {
  std::vector<std::vector<float>> outputs;  // Those of rank 0, by run.
  for (const NodeShared shared : {NodeShared::kOn, NodeShared::kOff}) {
    std::vector<float>& run = outputs.emplace_back();
    ShardingPolicy policy = testing::SharedImages(DType::kBF16);
    policy.node_shared = shared;
    testing::WithToyModel(
        2, policy, [&](testing::ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
          ShardedAdamW optimizer(model.Shards(), {.lr = 0.05}, {{HasAtMostOneDim, {.lr = 0.1}}});
          for (int step = 0; step < 4; ++step) {
            WEFT_RETURN_IF_ERROR(testing::ToyPassOf(net, model, rank, step));
            const bool frozen = step == 1;
            WEFT_RETURN_IF_ERROR(optimizer.Step(model, {{}, {.frozen = frozen}}));
            model.ZeroGradients();
            Invocation evaluation(/*gradients=*/false);
            WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(evaluation, {testing::ToyInputs(0, 3, 6)}));
            const std::vector<float> values = testing::ReadValues(y[0].view());
            if (rank == 0) run.insert(run.end(), values.begin(), values.end());
          }
          return absl::OkStatus();
        });
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_NE(outputs[0].front(), outputs[0].back());
}

}  // namespace
}  // namespace weft
