#include "weft/optim/loss_scaler.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

// The scales after each step of torch.amp.GradScaler("cpu", init_scale=2**16, growth_interval=3), 2.13.0.
TEST(LossScaler, FollowsTorchsGradScaler) {
  LossScaler scaler({.growth_interval = 3});
  std::vector<float> exponents;
  for (const bool overflowed :
       {false, true, false, false, true, true, false, false, false, false, false, false, true}) {
    EXPECT_EQ(scaler.Update(overflowed), overflowed);
    exponents.push_back(std::log2(scaler.scale()));
  }
  EXPECT_THAT(exponents, ElementsAre(16, 15, 15, 15, 14, 13, 13, 13, 14, 14, 14, 15, 14));
}

TEST(LossScaler, StaysAFloatHoweverOftenItGrowsAndBacksOff) {
  LossScaler scaler({.growth_interval = 1});
  for (int step = 0; step < 200; ++step) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127F);
  for (int exponent = 127; exponent > 0; --exponent) EXPECT_TRUE(scaler.Update(true));
  EXPECT_EQ(scaler.scale(), 1);
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(scaler.Update(true));
  EXPECT_EQ(scaler.scale(), 0x1p-24F);
}

TEST(LossScaler, UnscalesTheNormBeforeItClips) {
  const LossScaler scaler(LossScalerOptions{});
  const GradientNorm norm = scaler.Unscaled({.norm = 3.0 * 65536, .factor = 1.0}, /*max_norm=*/1.5);
  EXPECT_EQ(norm.norm, 3.0);
  EXPECT_EQ(norm.factor, 1.5 / (3.0 + 1e-6) / 65536);
  EXPECT_EQ(scaler.Unscaled({.norm = 65536, .factor = 1.0}, kNoClipping).factor, 1.0 / 65536);
  EXPECT_TRUE(
      std::isinf(scaler.Unscaled({.norm = std::numeric_limits<double>::infinity(), .factor = 0}, 1.0).norm));
}

TEST(LossScaler, NeverChangesAFixedScale) {
  LossScaler scaler({.fixed = 100.0F, .growth_interval = 1});
  EXPECT_FALSE(scaler.Update(true));
  EXPECT_FALSE(scaler.Update(false));
  EXPECT_EQ(scaler.scale(), 100.0F);
}

TEST(LossScaler, RefusesAStateOutOfRange) {
  LossScaler scaler(LossScalerOptions{});
  EXPECT_OK(scaler.SetState({.exponent = -24, .growth_steps = 5}));
  EXPECT_EQ(scaler.scale(), 0x1p-24F);
  for (const LossScaler::State& state :
       {LossScaler::State{.exponent = 128}, {.exponent = -25}, {.growth_steps = -1}}) {
    EXPECT_EQ(scaler.SetState(state).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace weft
