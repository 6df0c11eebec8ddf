// Custom collectives of a caller, which replace those of the engine.
#include "weft/sharding/custom_collectives.h"

#include <barrier>
#include <cstring>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Exchange of pointers between the ranks of one shard group, which are threads. It does not use the engine.
class PointerExchange {
 public:
  explicit PointerExchange(int ranks) : pointers_(static_cast<size_t>(ranks)), barrier_(ranks) {}

  // Runs `body(pointers)` on all ranks with the pointers of all of them, by group rank.
  template <typename Body>
  void Share(int group_rank, const void* mine, Body body) {
    pointers_[static_cast<size_t>(group_rank)] = static_cast<const std::byte*>(mine);
    barrier_.arrive_and_wait();
    body(pointers_);
    barrier_.arrive_and_wait();
  }

 private:
  std::vector<const std::byte*> pointers_;
  std::barrier<> barrier_;
};

// A collective that is over when its start returns.
class FinishedCollective : public PendingCollective {
 public:
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::Status WaitReleased() override { return absl::OkStatus(); }
  bool TestReleased() const override { return true; }
};

CustomAllGather AllGatherOver(PointerExchange& exchange, int& calls) {
  return [&exchange, &calls](const AllGatherRequest& request) -> StartedCollective {
    ++calls;
    const auto size = static_cast<int64_t>(SizeOf(request.dtype));
    const int64_t bytes = request.gathered_elements / request.group.size() * size;
    auto* gathered = static_cast<std::byte*>(request.gathered);
    exchange.Share(request.group.group_rank, request.part, [&](const auto& parts) {
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        std::byte* place = gathered + static_cast<int64_t>(rank) * bytes;
        if (place != parts[rank]) std::memcpy(place, parts[rank], static_cast<size_t>(bytes));
      }
    });
    return std::make_unique<FinishedCollective>();
  };
}

CustomReduceScatter ReduceScatterOver(PointerExchange& exchange, int& calls) {
  return [&exchange, &calls](const ReduceScatterRequest& request) -> StartedCollective {
    ++calls;
    const auto place = static_cast<size_t>(request.group.group_rank);
    int64_t begin = 0;
    for (size_t rank = 0; rank < place; ++rank) begin += request.counts[rank];
    const int64_t count = request.counts[place];
    std::vector<float> sum(static_cast<size_t>(count));
    std::vector<float> addend(static_cast<size_t>(count));
    exchange.Share(request.group.group_rank, request.input, [&](const auto& inputs) {
      for (const std::byte* input : inputs) {
        ConvertRun(input + BytesOf(begin, request.dtype), request.dtype, addend.data(), DType::kF32, count);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
      }
    });
    ConvertRun(sum.data(), DType::kF32, request.output, request.dtype, count);
    return std::make_unique<FinishedCollective>();
  };
}

struct Outcome {
  std::vector<float> gathered;
  std::vector<float> gradients;
};

// Runs one forward and three reductions of different scopes, which overlap.
absl::StatusOr<Outcome> Use(const GroupFixture& fixture, ParamGroup& group) {
  Outcome outcome;
  WEFT_RETURN_IF_ERROR(Gather(group));
  for (const auto& parameter : group.parameters()) {
    const std::vector<float> values = ReadValues(parameter->data);
    outcome.gathered.insert(outcome.gathered.end(), values.begin(), values.end());
  }
  WEFT_RETURN_IF_ERROR(group.Reshard());
  for (const ReduceScope scope :
       {ReduceScope::kShardAndReplicate, ReduceScope::kShard, ReduceScope::kShardAndReplicate}) {
    WEFT_RETURN_IF_ERROR(group.PrepareGradients());
    for (const auto& parameter : group.parameters()) {
      if (parameter->requires_grad) AddGradient(*parameter, Indices(parameter->elements()));
    }
    WEFT_RETURN_IF_ERROR(group.ReduceGradients(scope));
  }
  WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
  for (const ShardView& shard : group.Shards()) {
    if (shard.grad == nullptr) continue;
    outcome.gradients.insert(outcome.gradients.end(), shard.grad, shard.grad + shard.elements());
  }
  return outcome;
}

TEST(CustomCollectives, ReplaceTheEnginesInEveryExchangeOfAGroup) {
  for (const int replicas : {1, 2}) {
    std::vector<std::unique_ptr<PointerExchange>> exchanges;
    for (int replica = 0; replica < replicas; ++replica)
      exchanges.push_back(std::make_unique<PointerExchange>(2));
    RunRanks(NodeMap::OneNode(2 * replicas), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, replicas));
      PointerExchange& exchange = *exchanges[static_cast<size_t>(bootstrap.rank() / 2)];
      for (ShardingPolicy policy : PolicyOfEachLayout()) {
        if (policy.layout == FlatKind::kRows) continue;  // Refused: see below.
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          policy.param_dtype = dtype;
          policy.reduce_dtype = dtype;
          const auto parameters = MakeParameters({{7, 5}, {3}, {50}});
          parameters[2]->requires_grad = false;
          WEFT_ASSIGN_OR_RETURN(const auto with_engine, fixture.Group(parameters, policy));
          WEFT_ASSIGN_OR_RETURN(const Outcome expected, Use(fixture, *with_engine));
          const EngineCounters before = fixture.engine.engine->counters();
          WEFT_ASSIGN_OR_RETURN(const auto with_custom, fixture.Group(parameters, policy));
          int gathers = 0;
          int scatters = 0;
          with_custom->SetCustomAllGather(AllGatherOver(exchange, gathers));
          with_custom->SetCustomReduceScatter(ReduceScatterOver(exchange, scatters));
          WEFT_ASSIGN_OR_RETURN(const Outcome outcome, Use(fixture, *with_custom));
          EXPECT_EQ(outcome.gathered, expected.gathered);
          EXPECT_EQ(outcome.gradients, expected.gradients);
          EXPECT_EQ(gathers, 1);
          EXPECT_EQ(scatters, 3);
          const EngineCounters after = fixture.engine.engine->counters();
          EXPECT_EQ(after.all_gather_bytes, before.all_gather_bytes);
          EXPECT_EQ(after.reduce_scatter_bytes, before.reduce_scatter_bytes);
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(CustomCollectives, AreNotCalledIfNothingIsExchanged) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{7}})));
    PointerExchange exchange(1);
    int calls = 0;
    group->SetCustomAllGather(AllGatherOver(exchange, calls));
    group->SetCustomReduceScatter(ReduceScatterOver(exchange, calls));
    WEFT_RETURN_IF_ERROR(Use(fixture, *group).status());
    EXPECT_EQ(calls, 0);
    return absl::OkStatus();
  });
}

// A collective that fails when it is waited for.
class FailingCollective : public PendingCollective {
 public:
  absl::Status Wait() override { return absl::UnavailableError("the link is down"); }
  absl::Status WaitReleased() override { return Wait(); }
  bool TestReleased() const override { return true; }
};

TEST(CustomCollectives, FailTheContextWhenTheyFail) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const auto refuse = [](const auto&) -> StartedCollective { return absl::UnavailableError("no link"); };
    const auto fail_later = [](const auto&) -> StartedCollective {
      return std::make_unique<FailingCollective>();
    };
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (const bool at_start : {true, false}) {
      for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
        if (policy.layout == FlatKind::kRows) continue;
        WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{40}}), policy));
        const auto expect_failure_and_reset = [&](const absl::Status& status, const char* cause) {
          const auto stopped = AllOf(HasSubstr("sharding stopped"), HasSubstr(cause));
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, stopped));
          WEFT_RETURN_IF_ERROR(fixture.context->ResetAfterError());
          group->ResetAfterError();
          return absl::OkStatus();
        };
        group->SetCustomAllGather(at_start ? CustomAllGather(refuse) : CustomAllGather(fail_later));
        WEFT_RETURN_IF_ERROR(expect_failure_and_reset(
            Gather(*group), at_start ? "all-gather of 'group': no link" : "link is down"));
        group->SetCustomAllGather(nullptr);
        group->SetCustomReduceScatter(at_start ? CustomReduceScatter(refuse)
                                               : CustomReduceScatter(fail_later));
        WEFT_RETURN_IF_ERROR(expect_failure_and_reset(
            Use(fixture, *group).status(), at_start ? "reduce-scatter of 'group': no link" : "link is down"));
        group->SetCustomReduceScatter(nullptr);
        WEFT_RETURN_IF_ERROR(Use(fixture, *group).status());
        // No rank fails again before all ranks have recovered.
        WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
      }
    }
    return absl::OkStatus();
  });
}

// A collective that misses a deadline of its own once.
class LateCollective : public PendingCollective {
 public:
  absl::Status Wait() override {
    return std::exchange(is_late_, false) ? absl::DeadlineExceededError("the link is slow")
                                          : absl::OkStatus();
  }
  absl::Status WaitReleased() override { return Wait(); }
  bool TestReleased() const override { return true; }

 private:
  bool is_late_ = true;
};

TEST(CustomCollectives, AreWaitedForOnceIfThereIsAWaitCheck) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{40}})));
    fixture.context->state().SetWaitCheck([] { return absl::OkStatus(); });
    group->SetCustomAllGather(
        [](const auto&) -> StartedCollective { return std::make_unique<LateCollective>(); });
    EXPECT_THAT(Gather(*group), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("the link is slow")));
    WEFT_RETURN_IF_ERROR(fixture.context->ResetAfterError());
    group->ResetAfterError();
    return absl::OkStatus();
  });
}

TEST(CustomCollectives, AreRefusedForRows) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const auto never = [](const auto&) -> StartedCollective {
      ADD_FAILURE() << "the custom collective was started";
      return absl::InternalError("started");
    };
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    ShardingPolicy rows;
    rows.layout = FlatKind::kRows;
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{4, 10}}), rows));
    const auto expect_refused_and_reset = [&](const absl::Status& status, const char* collective) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr(collective), HasSubstr("layout kRows"))));
      WEFT_RETURN_IF_ERROR(fixture.context->ResetAfterError());
      group->ResetAfterError();
      return absl::OkStatus();
    };
    group->SetCustomAllGather(never);
    WEFT_RETURN_IF_ERROR(expect_refused_and_reset(Gather(*group), "custom all-gather"));
    group->SetCustomAllGather(nullptr);
    group->SetCustomReduceScatter(never);
    WEFT_RETURN_IF_ERROR(expect_refused_and_reset(Use(fixture, *group).status(), "custom reduce-scatter"));
    group->SetCustomReduceScatter(nullptr);
    return Use(fixture, *group).status();
  });
}

}  // namespace
}  // namespace weft::testing
