// A caller's own collectives in place of the engine's.
#include "weft/sharding/custom_collectives.h"

#include <barrier>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/group_fixture.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Where ranks that are threads of one shard group lay their pointers for each other. It knows nothing of the
// engine.
class Board {
 public:
  explicit Board(int ranks) : pointers_(static_cast<size_t>(ranks)), meet_(ranks) {}

  // Shows `mine` to the others while `body(pointers)` runs on all ranks.
  template <typename Body>
  void Share(int place, const void* mine, Body body) {
    pointers_[static_cast<size_t>(place)] = static_cast<const std::byte*>(mine);
    meet_.arrive_and_wait();
    body(pointers_);
    meet_.arrive_and_wait();
  }

 private:
  std::vector<const std::byte*> pointers_;
  std::barrier<> meet_;
};

// Has been over since it was started.
class Done : public PendingCollective {
 public:
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::Status WaitReleased() override { return absl::OkStatus(); }
  bool TestReleased() const override { return true; }
};

CustomAllGather GatherOver(Board& board, int& calls) {
  return [&board, &calls](const AllGatherRequest& request) -> StartedCollective {
    ++calls;
    const auto size = static_cast<int64_t>(SizeOf(request.dtype));
    const int64_t bytes = request.gathered_elements / request.group.size() * size;
    auto* gathered = static_cast<std::byte*>(request.gathered);
    board.Share(request.group.group_rank, request.part, [&](const auto& parts) {
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        std::byte* place = gathered + static_cast<int64_t>(rank) * bytes;
        if (place != parts[rank]) std::memcpy(place, parts[rank], static_cast<size_t>(bytes));
      }
    });
    return std::make_unique<Done>();
  };
}

CustomReduceScatter ReduceOver(Board& board, int& calls) {
  return [&board, &calls](const ReduceScatterRequest& request) -> StartedCollective {
    ++calls;
    const auto place = static_cast<size_t>(request.group.group_rank);
    int64_t begin = 0;
    for (size_t rank = 0; rank < place; ++rank) begin += request.counts[rank];
    const int64_t count = request.counts[place];
    std::vector<float> sum(static_cast<size_t>(count));
    std::vector<float> addend(static_cast<size_t>(count));
    board.Share(request.group.group_rank, request.input, [&](const auto& inputs) {
      for (const std::byte* input : inputs) {
        ConvertRun(input + begin * static_cast<int64_t>(SizeOf(request.dtype)), request.dtype, addend.data(),
                   DType::kF32, count);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
      }
    });
    ConvertRun(sum.data(), DType::kF32, request.output, request.dtype, count);
    return std::make_unique<Done>();
  };
}

struct Outcome {
  std::vector<float> gathered;
  std::vector<float> gradients;
};

// Forward and three reductions of different scopes, some in flight at once.
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

TEST(CustomCollectives, TakeThePlaceOfTheEnginesForAllThatAGroupExchanges) {
  for (const int replicas : {1, 2}) {
    std::vector<std::unique_ptr<Board>> boards;
    for (int replica = 0; replica < replicas; ++replica) boards.push_back(std::make_unique<Board>(2));
    RunRanks(NodeMap::OneNode(2 * replicas), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, replicas));
      Board& board = *boards[static_cast<size_t>(bootstrap.rank() / 2)];
      for (ShardingPolicy policy : BothKinds()) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          policy.param_dtype = dtype;
          policy.reduce_dtype = dtype;
          const auto parameters = MakeParameters({{7, 5}, {3}, {50}});
          parameters[2]->requires_grad = false;
          WEFT_ASSIGN_OR_RETURN(const auto theirs, fixture.Group(parameters, policy));
          WEFT_ASSIGN_OR_RETURN(const Outcome expected, Use(fixture, *theirs));
          const EngineCounters before = fixture.engine.engine->counters();
          WEFT_ASSIGN_OR_RETURN(const auto own, fixture.Group(parameters, policy));
          int gathers = 0;
          int scatters = 0;
          own->SetCustomAllGather(GatherOver(board, gathers));
          own->SetCustomReduceScatter(ReduceOver(board, scatters));
          WEFT_ASSIGN_OR_RETURN(const Outcome outcome, Use(fixture, *own));
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

TEST(CustomCollectives, AreNotCalledWhereThereIsNothingToExchange) {
  RunRanks(NodeMap::OneNode(1), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{7}})));
    Board board(1);
    int calls = 0;
    group->SetCustomAllGather(GatherOver(board, calls));
    group->SetCustomReduceScatter(ReduceOver(board, calls));
    WEFT_RETURN_IF_ERROR(Use(fixture, *group).status());
    EXPECT_EQ(calls, 0);
    return absl::OkStatus();
  });
}

// Fails when it is waited for.
class Broken : public PendingCollective {
 public:
  absl::Status Wait() override { return absl::UnavailableError("the cable is out"); }
  absl::Status WaitReleased() override { return Wait(); }
  bool TestReleased() const override { return true; }
};

TEST(CustomCollectives, StopTheContextWhenTheyFail) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    const auto refuse = [](const auto&) -> StartedCollective { return absl::UnavailableError("no cable"); };
    const auto break_later = [](const auto&) -> StartedCollective { return std::make_unique<Broken>(); };
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    for (const bool at_start : {true, false}) {
      for (const ShardingPolicy& policy : BothKinds()) {
        WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{40}}), policy));
        const auto stops = [&](const absl::Status& status, const char* what) {
          const auto stopped = AllOf(HasSubstr("sharding stopped"), HasSubstr(what));
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, stopped));
          WEFT_RETURN_IF_ERROR(fixture.context->ResetAfterError());
          group->ResetAfterError();
          return absl::OkStatus();
        };
        group->SetCustomAllGather(at_start ? CustomAllGather(refuse) : CustomAllGather(break_later));
        WEFT_RETURN_IF_ERROR(
            stops(Gather(*group), at_start ? "all-gather of 'group': no cable" : "cable is out"));
        group->SetCustomAllGather(nullptr);
        group->SetCustomReduceScatter(at_start ? CustomReduceScatter(refuse)
                                               : CustomReduceScatter(break_later));
        WEFT_RETURN_IF_ERROR(stops(Use(fixture, *group).status(),
                                   at_start ? "reduce-scatter of 'group': no cable" : "cable is out"));
        group->SetCustomReduceScatter(nullptr);
        WEFT_RETURN_IF_ERROR(Use(fixture, *group).status());
        // Nobody fails again before all are through.
        WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), absl::Seconds(120)));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
