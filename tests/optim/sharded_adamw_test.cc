#include "weft/optim/sharded_adamw.h"

#include <deque>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::Each;
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

}  // namespace
}  // namespace weft
