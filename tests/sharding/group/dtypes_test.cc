// DTypes of a group, and division of its gradients.
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharding/plan/divide_factors.h"
#include "sharding/plan/group_spec.h"
#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Policy in which the parameters of these names have the dtypes `other`, and the rest fp32.
ShardingPolicy WithDTypes(std::vector<std::string> names, ParameterDTypes other) {
  ShardingPolicy policy;
  policy.dtypes_of = [names = std::move(names), other](const Parameter& parameter) {
    return std::find(names.begin(), names.end(), parameter.name) != names.end() ? other : ParameterDTypes{};
  };
  return policy;
}

TEST(GroupDTypes, NameTheParametersThatDisagree) {
  const auto parameters = MakeParameters({{4}, {4}, {4}, {4}});
  const auto expect_refused = [&parameters](const ParameterDTypes& other, const char* kind,
                                            const char* dtype) {
    const std::string differing = absl::StrCat("'p1' has ", dtype, ", 'p3' has ", dtype);
    EXPECT_THAT(AgreeOnDTypes("block", parameters, WithDTypes({"p1", "p3"}, other)),
                StatusIs(kInvalid, AllOf(HasSubstr("'block' mixes"), HasSubstr(kind),
                                         HasSubstr("'p0' has f32"), HasSubstr(differing),
                                         Not(HasSubstr("p2")), HasSubstr("in groups of their own"))));
  };
  expect_refused({.param = DType::kBF16}, "all-gather dtypes", "bf16");
  expect_refused({.reduce = DType::kF16}, "reduce dtypes", "f16");
  expect_refused({.gradient = DType::kBF16}, "gradient dtypes", "bf16");
  expect_refused({.master = DType::kF64}, "master dtypes", "f64");
}

TEST(GroupDTypes, NameTheParametersWhoseStorageDisagrees) {
  const auto parameters = MakeParameters({{2}, {2}, {2}});
  std::array<float, 2> wide = {};
  std::array<BF16, 2> narrow = {};
  parameters[0]->data = TensorView::Contiguous(wide.data(), DType::kF32, {2});
  parameters[2]->data = TensorView::Contiguous(narrow.data(), DType::kBF16, {2});
  EXPECT_THAT(AgreeOnDTypes("block", parameters, {}),
              StatusIs(kInvalid, AllOf(HasSubstr("original dtypes"), HasSubstr("'p0' has f32"),
                                       HasSubstr("'p2' has bf16"), Not(HasSubstr("p1")))));
  parameters[2]->data.data = nullptr;  // A parameter without storage agrees with any dtype.
  EXPECT_OK(AgreeOnDTypes("block", parameters, {}));
}

TEST(GroupDTypes, RefuseUnsupportedDTypes) {
  const auto parameters = MakeParameters({{2}});
  const auto refused = [&](const ParameterDTypes& dtypes) {
    return AgreeOnDTypes("block", parameters, WithDTypes({"p0"}, dtypes)).status();
  };
  EXPECT_THAT(refused({.param = DType::kI32}),
              StatusIs(kInvalid, AllOf(HasSubstr("'p0' of group 'block'"), HasSubstr("param_dtype is i32"))));
  EXPECT_THAT(refused({.reduce = DType::kI32}), StatusIs(kInvalid, HasSubstr("reduce_dtype is i32")));
  EXPECT_THAT(refused({.gradient = DType::kI32}), StatusIs(kInvalid, HasSubstr("gradient_dtype is i32")));
  EXPECT_THAT(refused({.master = DType::kBF16}), StatusIs(kInvalid, HasSubstr("master_dtype is bf16")));
}

TEST(GroupDTypes, MayDifferBetweenGroups) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    const auto parameters = MakeParameters({{40}, {40}});
    const ParameterDTypes narrow{DType::kBF16, DType::kBF16, DType::kF32};
    const ShardingPolicy policy = WithDTypes({"p1"}, narrow);
    WEFT_ASSIGN_OR_RETURN(const auto wide_group, fixture.Group({parameters[0]}, policy));
    WEFT_ASSIGN_OR_RETURN(const auto narrow_group, fixture.Group({parameters[1]}, policy));
    for (ParamGroup* group : {wide_group.get(), narrow_group.get()}) {
      WEFT_RETURN_IF_ERROR(Gather(*group));
      const Parameter& parameter = *group->parameters()[0];
      EXPECT_EQ(parameter.data.dtype, group == wide_group.get() ? DType::kF32 : DType::kBF16);
      EXPECT_EQ(ReadValues(parameter.data), Indices(40));
      WEFT_RETURN_IF_ERROR(group->PrepareGradients());
      EXPECT_EQ(parameter.grad.dtype, DType::kF32);
      WEFT_RETURN_IF_ERROR(group->ReduceGradients());
      WEFT_RETURN_IF_ERROR(group->Reshard());
    }
    return fixture.context->FinishBackward();
  });
}

TEST(GroupDTypes, RefuseF64MastersWhoseReplicasShareTheOptimizer) {
  ShardingPolicy policy = WithDTypes({"p0"}, {.master = DType::kF64});
  policy.shard_optimizer_over_replicas = true;
  GroupMembers members{"block", -1, MakeParameters({{2}})};
  EXPECT_THAT(SpecifyGroup(std::move(members), policy, 2, {}, 1),
              StatusIs(kInvalid, AllOf(HasSubstr("'block' has f64 masters"),
                                       HasSubstr("switch shard_optimizer_over_replicas off"))));
}

// A third of the sum over ranks and over two reductions, with values that need double.
TEST(GroupDTypes, MayHaveMastersAndSumsInF64) {
  constexpr int64_t kCount = 40;
  const auto value = [](int rank, int64_t i) { return 1.0 + std::ldexp(static_cast<double>(i + rank), -45); };
  for (const int ranks : {1, 2, 3}) {
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
      for (ShardingPolicy policy : PolicyOfEachLayout()) {
        policy.gradient_divide_factor = 3.0;
        policy.dtypes_of = [](const Parameter&) {
          return ParameterDTypes{
              .param = DType::kF64, .reduce = DType::kF64, .gradient = std::nullopt, .master = DType::kF64};
        };
        WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{kCount}}), policy));
        WEFT_RETURN_IF_ERROR(Gather(*group));
        const Parameter& parameter = *group->parameters()[0];
        for (int64_t i = 0; i < kCount; ++i) {
          EXPECT_EQ(parameter.data.As<double>()[i], static_cast<double>(i));
        }
        WEFT_RETURN_IF_ERROR(group->Reshard());
        for (const int time : {1, 2}) {
          WEFT_RETURN_IF_ERROR(group->PrepareGradients());
          for (int64_t i = 0; i < kCount; ++i) {
            parameter.grad.As<double>()[i] = time * value(bootstrap.rank(), i);
          }
          group->parameters()[0]->BeginGradWrite();
          WEFT_RETURN_IF_ERROR(group->ReduceGradients());
        }
        WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
        for (const MasterView& shard : group->Masters()) {
          const auto* gradient = reinterpret_cast<const double*>(shard.grad);
          for (int64_t i = 0; i < shard.elements(); ++i) {
            double sum = 0.0;
            for (int rank = 0; rank < ranks; ++rank) sum += value(rank, shard.piece.start + i);
            EXPECT_EQ(gradient[i], sum * (1.0 / 3.0) + 2.0 * sum * (1.0 / 3.0)) << ranks << " ranks";
          }
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(DivideScales, DivideOnlyAfterTheReductionExceptInF16) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(SpreadDivision(24.0F, dtype).before, 1.0F);
    EXPECT_EQ(SpreadDivision(32.0F, dtype).after, 1.0F / 32);
  }
  for (const float factor : {1.0F, 2.0F, 4.0F, 8.0F, 1024.0F, 0.25F}) {  // Powers of two, for exact results.
    const DivideScales scales = SpreadDivision(factor, DType::kF16);
    EXPECT_EQ(scales.before * scales.after, 1.0F / factor);
  }
  EXPECT_EQ(SpreadDivision(1.0F, DType::kF16).before, 1.0F);
  EXPECT_EQ(SpreadDivision(64.0F, DType::kF16).before, 1.0F / 8);
  EXPECT_EQ(SpreadDivision(65.0F, DType::kF16).before, 1.0F / 16);
}

// Reduces `value` from every rank, `times` times, and returns this rank's gradients.
absl::StatusOr<std::vector<float>> ReduceOnce(const GroupFixture& fixture, const ShardingPolicy& policy,
                                              float value, int times = 1) {
  WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{20}}), policy));
  for (int i = 0; i < times; ++i) {
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    AddGradient(*group->parameters()[0], std::vector<float>(20, value));
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
  }
  WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
  std::vector<float> gradients;
  for (const ShardView& shard : group->Shards()) {
    gradients.insert(gradients.end(), shard.grad, shard.grad + shard.elements());
  }
  return gradients;
}

TEST(GradientDivision, DividesTheSumOnceInEveryDType) {
  // Gradients are written in f32, or in the dtype in which they are reduced.
  constexpr std::pair<DType, DType> kPairs[] = {{DType::kF32, DType::kF32},
                                                {DType::kF32, DType::kBF16},
                                                {DType::kF32, DType::kF16},
                                                {DType::kBF16, DType::kBF16},
                                                {DType::kF16, DType::kF16}};
  for (const auto& [replicas, ranks] : {std::pair{1, 1}, {1, 2}, {2, 2}, {2, 4}}) {
    RunRanks(NodeMap::OneNode(ranks),
             [&, replicas = replicas, ranks = ranks](Bootstrap& bootstrap) -> absl::Status {
               WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, replicas));
               for (ShardingPolicy policy : PolicyOfEachLayout()) {
                 policy.gradient_divide_factor = 8.0F;
                 for (const auto& [param, reduce] : kPairs) {
                   policy.param_dtype = param;
                   policy.reduce_dtype = reduce;
                   for (const int times : {1, 2}) {
                     WEFT_ASSIGN_OR_RETURN(const auto gradients, ReduceOnce(fixture, policy, 12.0F, times));
                     EXPECT_THAT(gradients, Each(1.5F * static_cast<float>(ranks * times)));
                   }
                 }
               }
               return absl::OkStatus();
             });
  }
}

TEST(GradientDivision, DividesAPartialSumByTheFactorOfItsLastReduction) {
  for (const int replicas : {1, 2}) {
    RunRanks(NodeMap::OneNode(2 * replicas), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, replicas));
      for (ShardingPolicy policy : PolicyOfEachLayout()) {
        policy.gradient_divide_factor = 4.0F;
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
          policy.reduce_dtype = dtype;
          WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{20}}), policy));
          for (const ReduceScope scope :
               {ReduceScope::kShard, ReduceScope::kShard, ReduceScope::kShardAndReplicate}) {
            WEFT_RETURN_IF_ERROR(group->PrepareGradients());
            AddGradient(*group->parameters()[0], std::vector<float>(20, 64.0F));
            WEFT_RETURN_IF_ERROR(group->ReduceGradients(scope));
            group->SetGradientDivideFactor(64.0F);
          }
          WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
          for (const ShardView& shard : group->Shards()) {
            EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())),
                        Each(3.0F * 2.0F * static_cast<float>(replicas)));
          }
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(GradientDivision, KeepsSumsInF16FromOverflowing) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (ShardingPolicy policy : PolicyOfEachLayout()) {
      policy.reduce_dtype = DType::kF16;
      for (const DType param : {DType::kF32, DType::kF16}) {
        policy.param_dtype = param;
        policy.gradient_divide_factor = 1.0F;
        WEFT_ASSIGN_OR_RETURN(const auto overflowed, ReduceOnce(fixture, policy, 32768.0F));
        EXPECT_THAT(overflowed, Each(std::numeric_limits<float>::infinity()));
        policy.gradient_divide_factor = 4.0F;
        WEFT_ASSIGN_OR_RETURN(const auto divided, ReduceOnce(fixture, policy, 16384.0F));
        EXPECT_THAT(divided, Each(16384.0F));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
