#include "weft/optim/lr_schedule.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(LrSchedule, RisesLinearlyThroughTheWarmUp) {
  for (const LrDecay decay : {LrDecay::kConstant, LrDecay::kLinear, LrDecay::kCosine}) {
    const LrSchedule schedule = {.lr = 2.0, .decay = decay, .warmup_steps = 4, .total_steps = 10};
    EXPECT_DOUBLE_EQ(schedule.At(1), 0.5);
    EXPECT_DOUBLE_EQ(schedule.At(3), 1.5);
    EXPECT_DOUBLE_EQ(schedule.At(4), 2.0);
  }
}

// As transformers' schedules, which multiply the rate by step / warmup.
TEST(LrSchedule, HasTheExactRateAtTheEndOfTheWarmUp) {
  for (const double lr : {5e-5, 1e-4, 3e-4, 7e-4, 3e-3, 5e-3}) {
    for (int64_t warmup = 1; warmup <= 2000; ++warmup) {
      const LrSchedule schedule = {.lr = lr, .warmup_steps = warmup, .total_steps = 2000};
      ASSERT_EQ(schedule.At(warmup), lr) << warmup;
    }
  }
}

TEST(LrSchedule, FollowsItsDecayFromTheWarmUpToTheEnd) {
  LrSchedule schedule = {.lr = 2.0, .warmup_steps = 2, .total_steps = 10, .min_ratio = 0.1};
  for (int64_t step = 3; step <= 10; ++step) {
    const double x = static_cast<double>(step - 2) / 8.0;
    schedule.decay = LrDecay::kConstant;
    EXPECT_DOUBLE_EQ(schedule.At(step), 2.0);
    schedule.decay = LrDecay::kLinear;
    EXPECT_DOUBLE_EQ(schedule.At(step), 2.0 * (1.0 - 0.9 * x));
    schedule.decay = LrDecay::kCosine;
    EXPECT_DOUBLE_EQ(schedule.At(step), 2.0 * (0.1 + 0.9 * (1.0 + std::cos(std::numbers::pi * x)) / 2.0));
  }
}

TEST(LrSchedule, EndsAtTheFloorAndStaysThere) {
  for (const LrDecay decay : {LrDecay::kLinear, LrDecay::kCosine}) {
    const LrSchedule schedule = {.lr = 2.0, .decay = decay, .total_steps = 7, .min_ratio = 0.25};
    EXPECT_DOUBLE_EQ(schedule.At(7), 0.5);
    EXPECT_DOUBLE_EQ(schedule.At(9), 0.5);
  }
}

TEST(LrSchedule, MayConsistOfWarmUpOnly) {
  const LrSchedule schedule = {.lr = 1.0, .decay = LrDecay::kLinear, .warmup_steps = 5, .total_steps = 5};
  EXPECT_DOUBLE_EQ(schedule.At(5), 1.0);
}

}  // namespace
}  // namespace weft
