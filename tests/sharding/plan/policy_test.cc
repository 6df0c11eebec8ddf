#include "weft/sharding/policy.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

TEST(ShardingPolicy, IsValidByDefault) { EXPECT_OK(ShardingPolicy().Validate()); }

TEST(ShardingPolicy, NamesTheInvalidOption) {
  const auto expect_invalid = [](auto&& change, const char* message) {
    ShardingPolicy policy;
    change(policy);
    EXPECT_THAT(policy.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect_invalid([](ShardingPolicy& p) { p.param_dtype = DType::kI32; }, "param_dtype is i32");
  expect_invalid([](ShardingPolicy& p) { p.reduce_dtype = DType::kI32; }, "reduce_dtype is i32");
  expect_invalid([](ShardingPolicy& p) { p.param_dtype = DType::kI32; }, "f32 or bf16 or f16");
  expect_invalid([](ShardingPolicy& p) { p.reduce_dtype = DType::kI32; }, "f32 or bf16 or f16");
  expect_invalid([](ShardingPolicy& p) { p.gradient_divide_factor = 0.0F; }, "gradient_divide_factor is 0");
  expect_invalid([](ShardingPolicy& p) { p.gradient_divide_factor = -2.0F; }, "a positive number");
  expect_invalid([](ShardingPolicy& p) { p.gradient_divide_factor = NAN; }, "gradient_divide_factor is nan");
  expect_invalid([](ShardingPolicy& p) { p.gradient_divide_factor = INFINITY; }, "is inf");
  expect_invalid([](ShardingPolicy& p) { p.reshard_after_forward_size = 1; },
                 "switch reshard_after_forward off");
  expect_invalid([](ShardingPolicy& p) { p.reshard_after_forward_size = -1; },
                 "reshard_after_forward_size is -1");
  expect_invalid(
      [](ShardingPolicy& p) {
        p.reshard_after_forward_size = 2;
        p.reshard_after_forward = false;
      },
      "set one of them");
  expect_invalid([](ShardingPolicy& p) { p.prefetch_depth = -1; }, "prefetch_depth is -1");
  expect_invalid([](ShardingPolicy& p) { p.prefetch_depth = 3; }, "0 to 2");
  expect_invalid([](ShardingPolicy& p) { p.max_reduce_scatters = -1; }, "max_reduce_scatters is -1");
  expect_invalid([](ShardingPolicy& p) { p.max_all_reduces = 0; }, "max_all_reduces 0");
  expect_invalid([](ShardingPolicy& p) { p.shard_dim = [](const Parameter&) { return 1; }; },
                 "kPerParameter");
}

TEST(ShardingPolicy, WritesGradientsIn16BitsOnlyIfTheyAreReducedInTheSame) {
  const auto gradient = [](DType param, DType reduce) {
    ShardingPolicy policy;
    policy.param_dtype = param;
    policy.reduce_dtype = reduce;
    return policy.DTypes().gradient_dtype();
  };
  EXPECT_EQ(gradient(DType::kF32, DType::kF32), DType::kF32);
  EXPECT_EQ(gradient(DType::kF32, DType::kBF16), DType::kF32);
  EXPECT_EQ(gradient(DType::kBF16, DType::kF32), DType::kF32);
  EXPECT_EQ(gradient(DType::kBF16, DType::kBF16), DType::kBF16);
  EXPECT_EQ(gradient(DType::kBF16, DType::kF16), DType::kF32);
  EXPECT_EQ(gradient(DType::kF16, DType::kF32), DType::kF32);
  EXPECT_EQ(gradient(DType::kF16, DType::kF16), DType::kF16);
}

}  // namespace
}  // namespace weft::testing
