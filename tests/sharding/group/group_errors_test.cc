// Errors of parameter groups: calls out of order, and recovery from failures in every state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using State = ParamGroup::State;

constexpr int kRanks = 4;  // Two replicas of a shard group of two.

using Steps = std::function<absl::Status(CommContext&, ParamGroup&)>;

absl::Status Unshard(CommContext&, ParamGroup& group) { return group.Unshard(Priority::kCritical); }

absl::Status UnshardAndWait(CommContext&, ParamGroup& group) { return Gather(group); }

absl::Status KeepPart(CommContext&, ParamGroup& group) {
  WEFT_RETURN_IF_ERROR(Gather(group));
  return group.ReshardAfterForward();
}

absl::Status Prepare(CommContext&, ParamGroup& group) {
  WEFT_RETURN_IF_ERROR(Gather(group));
  WEFT_RETURN_IF_ERROR(group.PrepareGradients());
  for (const auto& parameter : group.parameters()) AddGradient(*parameter, Indices(parameter->elements()));
  return absl::OkStatus();
}

Steps Reduce(std::vector<ReduceScope> scopes, bool finish) {
  return [scopes = std::move(scopes), finish](CommContext& context, ParamGroup& group) -> absl::Status {
    for (const ReduceScope scope : scopes) {
      WEFT_RETURN_IF_ERROR(Prepare(context, group));
      WEFT_RETURN_IF_ERROR(group.ReduceGradients(scope));
      WEFT_RETURN_IF_ERROR(group.Reshard());
    }
    return finish ? context.FinishBackward() : absl::OkStatus();
  };
}

struct Situation {
  const char* name;
  Steps steps;
};

std::vector<Situation> Situations() {
  constexpr auto kShard = ReduceScope::kShard;
  constexpr auto kFull = ReduceScope::kShardAndReplicate;
  return {
      {"sharded", [](CommContext&, ParamGroup&) { return absl::OkStatus(); }},
      {"unsharding", Unshard},
      {"unsharded", UnshardAndWait},
      {"sharded after forward", KeepPart},
      {"gathering from neighbors",
       [](CommContext& context, ParamGroup& group) -> absl::Status {
         WEFT_RETURN_IF_ERROR(KeepPart(context, group));
         return group.Unshard(Priority::kCritical);
       }},
      {"with gradients", Prepare},
      {"reducing", Reduce({kFull}, false)},
      {"reducing a partial sum", Reduce({kShard}, false)},
      {"reducing with a partial sum", Reduce({kShard, kFull}, false)},
      {"reducing more than may be in flight", Reduce({kFull, kShard, kShard, kFull, kFull}, false)},
      {"with a partial sum", Reduce({kShard}, true)},
      {"with a reduced sum", Reduce({kFull}, true)},
      {"with both sums", Reduce({kFull, kShard}, true)},
  };
}

// Uses the group from unshard to reduced gradients and checks all values.
absl::Status ExpectWorks(CommContext& context, ParamGroup& group) {
  WEFT_RETURN_IF_ERROR(Gather(group));
  for (const auto& parameter : group.parameters()) {
    EXPECT_EQ(ReadValues(parameter->data), Indices(parameter->elements()));
  }
  WEFT_RETURN_IF_ERROR(group.ReshardAfterForward());
  WEFT_RETURN_IF_ERROR(Reduce({ReduceScope::kShard, ReduceScope::kShardAndReplicate}, true)(context, group));
  for (const ShardView& shard : group.Shards()) {
    for (int64_t i = 0; i < shard.elements(); ++i) {
      EXPECT_EQ(shard.grad[i], static_cast<float>(2 * kRanks * (shard.piece.start + i)));
    }
  }
  return absl::OkStatus();
}

TEST(GroupErrors, ReachEveryRankInEveryStateAndCanBeReset) {
  CommContext::Options options;
  options.lanes.regather_sizes = {2};
  for (const Situation& situation : Situations()) {
    SCOPED_TRACE(situation.name);
    for (const NodeMap& nodes : {NodeMap::OneNode(kRanks), NodeMap::RanksPerNode(kRanks, 1)}) {
      RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
        SCOPED_TRACE(situation.name);
        WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 2, options));
        CommContext& context = *fixture.context;
        for (const ShardingPolicy& policy : PolicyOfEachLayout(/*regather_size=*/2)) {
          const auto parameters = MakeParameters({{9, 5}, {70}});
          WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
          const absl::Status reached = situation.steps(context, *group);
          if (bootstrap.rank() == 1) {
            EXPECT_OK(reached);
            EXPECT_THAT(context.state().Fail(absl::InternalError("rank 1 failed")), Not(IsOk()));
          }
          // The peer of rank 1 in the shard group waits for it and gets its error.
          float nothing = 0.0F;
          const absl::Status failed =
              context.lanes().AllReduceScalars("scalar", &nothing, DType::kF32, 1, ReduceOp::kSum);
          if (bootstrap.rank() < 2) {
            EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 1 failed"));
          }
          // The other replica may have finished all its operations; it gets the error in the agreement.
          const absl::Status agreed = AgreeOnStatus(bootstrap, failed, kTestTimeout);
          EXPECT_THAT(context.state().Fail(agreed), Not(IsOk()));
          WEFT_RETURN_IF_ERROR(context.ResetAfterError());
          group->ResetAfterError();
          EXPECT_EQ(group->state(), State::kSharded);
          EXPECT_FALSE(group->has_unreduced_gradients());
          EXPECT_FALSE(group->has_reduced_gradients());
          for (const auto& parameter : parameters) {
            EXPECT_EQ(parameter->data.data, nullptr);
            EXPECT_EQ(parameter->grad.data, nullptr);
          }
          // No rank fails again before all ranks have recovered.
          const absl::Status works = ExpectWorks(context, *group);
          WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, works, kTestTimeout));
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(GroupErrors, AreReturnedByEveryLaterCall) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{8}})));
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    const auto stopped = StatusIs(absl::StatusCode::kDataLoss,
                                  AllOf(HasSubstr("sharding stopped"), HasSubstr("the first cause")));
    EXPECT_THAT(fixture.context->state().Fail(absl::DataLossError("the first cause")), stopped);
    EXPECT_THAT(fixture.context->state().Fail(absl::InternalError("a consequence")), stopped);
    EXPECT_THAT(group->Unshard(Priority::kCritical), stopped);
    EXPECT_THAT(group->ReduceGradients(), stopped);
    EXPECT_THAT(fixture.context->FinishBackward(), stopped);
    WEFT_RETURN_IF_ERROR(fixture.context->ResetAfterError());
    group->ResetAfterError();
    return Gather(*group);
  });
}

TEST(GroupErrors, NameTheCallThatIsMissing) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{8}}), policy));
      const auto expect_refused = [](const absl::Status& status, const char* problem, const char* remedy) {
        EXPECT_THAT(status, StatusIs(kPrecondition,
                                     AllOf(HasSubstr("'group'"), HasSubstr(problem), HasSubstr(remedy))));
      };
      expect_refused(group->WaitUnshard(), "no unshard is pending", "call Unshard first");
      for (const ReduceScope scope : {ReduceScope::kShard, ReduceScope::kShardAndReplicate}) {
        expect_refused(group->ReduceGradients(scope), "no gradients to reduce", "call PrepareGradients");
      }
      WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
      expect_refused(group->Reshard(), "is being unsharded", "call WaitUnshard before");
      expect_refused(group->ReshardAfterForward(), "is being unsharded", "call WaitUnshard before");
      WEFT_RETURN_IF_ERROR(group->WaitUnshard());
      WEFT_RETURN_IF_ERROR(group->PrepareGradients());
      WEFT_RETURN_IF_ERROR(group->ReduceGradients());
      expect_refused(group->ReduceGradients(), "no gradients to reduce", "call PrepareGradients");
      WEFT_RETURN_IF_ERROR(group->Reshard());
      expect_refused(group->WaitUnshard(), "no unshard is pending", "call Unshard first");
      WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    }
    return absl::OkStatus();
  });
}

TEST(GroupErrors, AreNotReturnedForRepeatedCalls) {
  CommContext::Options options;
  options.lanes.regather_sizes = {2};
  RunRanks(NodeMap::OneNode(2), [&options](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 1, options));
    for (const ShardingPolicy& policy : PolicyOfEachLayout(/*regather_size=*/2)) {
      const auto parameters = MakeParameters({{8}});
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
      const int64_t before = fixture.context->state().counters().all_gathers;
      const auto twice = [](auto&& call) -> absl::Status {
        WEFT_RETURN_IF_ERROR(call());
        return call();
      };
      WEFT_RETURN_IF_ERROR(twice([&] { return group->Unshard(Priority::kPrefetch); }));
      WEFT_RETURN_IF_ERROR(twice([&] { return group->WaitUnshard(); }));
      WEFT_RETURN_IF_ERROR(twice([&] { return group->ReshardAfterForward(); }));
      WEFT_RETURN_IF_ERROR(twice([&] { return Gather(*group); }));
      EXPECT_EQ(ReadValues(parameters[0]->data), Indices(8));
      WEFT_RETURN_IF_ERROR(twice([&] { return group->PrepareGradients(); }));
      WEFT_RETURN_IF_ERROR(group->ReduceGradients());
      WEFT_RETURN_IF_ERROR(twice([&] { return group->Reshard(); }));
      WEFT_RETURN_IF_ERROR(twice([&] { return fixture.context->FinishBackward(); }));
      EXPECT_EQ(fixture.context->state().counters().all_gathers - before, 2);
    }
    return absl::OkStatus();
  });
}

TEST(GroupErrors, LeaveNoImageIfTheGatheredBufferHasNoRoom) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    ShardingPolicy policy;
    policy.layout = FlatKind::kPerParameter;
    // The master takes 2.4 MB of the heap's 8 MiB, and the image 4.8 MB.
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{1'200'000}}), policy));
    EXPECT_THAT(group->Unshard(Priority::kCritical),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("gathered images")));
    EXPECT_EQ(group->state(), State::kSharded);
    PipelineMemory& memory = fixture.context->memory();
    EXPECT_GE(memory.peaks().image_bytes, size_t{4'800'000});
    memory.ResetPeaks();
    EXPECT_EQ(memory.peaks().image_bytes, 0);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
