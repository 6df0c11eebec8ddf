// Lanes of members only: groups that other ranks do not know, formed in any order.
#include <algorithm>
#include <random>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/blob_store.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/support/schedule_count.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"
#include "weft/mesh/simulation.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Checks that an all-reduce over the lane adds the ranks of its group, `times` times.
absl::Status CheckSumOfRanks(EngineFixture& fixture, LaneId lane, int times = 1) {
  const ProcessGroup& group = fixture.engine->group(lane);
  constexpr int64_t kCount = 500;
  double expected = 0;
  for (const int rank : group.ranks) expected += rank + 1;
  WEFT_ASSIGN_OR_RETURN(TestBuffer input, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
  WEFT_ASSIGN_OR_RETURN(TestBuffer output, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
  input.Write(0, std::vector<double>(kCount, fixture.engine->bootstrap().rank() + 1));
  for (int i = 0; i < times; ++i) {
    Work work =
        fixture.engine->AllReduce(lane, input.data(), output.data(), DType::kI32, kCount, ReduceOp::kSum);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    EXPECT_EQ(output.Read(0, kCount), std::vector<double>(kCount, expected)) << group.name;
  }
  return absl::OkStatus();
}

// Groups of two to all ranks, the same on every rank.
std::vector<std::vector<int>> DrawGroups(uint64_t seed, int ranks, int count) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int>> groups;
  for (int i = 0; i < count; ++i) {
    std::vector<int> order(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) order[static_cast<size_t>(rank)] = rank;
    std::shuffle(order.begin(), order.end(), random);
    order.resize(1 + random() % static_cast<uint64_t>(ranks));
    groups.push_back(order);
  }
  return groups;
}

// Each rank forms its own groups alone, beside lanes of all ranks, and uses all of them.
absl::Status FormAndUse(Bootstrap& bootstrap, BlobStore& store, uint64_t seed) {
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
  std::vector<LaneId> lanes = {fixture.lane};
  const std::vector<std::vector<int>> groups = DrawGroups(seed, bootstrap.size(), 12);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == groups.size() / 2) {
      WEFT_ASSIGN_OR_RETURN(lanes.emplace_back(),
                            fixture.engine->SharedLane(WorldGroup(bootstrap), LanePurpose::kControl));
    }
    if (std::find(groups[i].begin(), groups[i].end(), bootstrap.rank()) == groups[i].end()) continue;
    const ProcessGroup group = GroupOf(absl::StrCat("group ", i), groups[i], bootstrap.rank());
    const int number = static_cast<int>(i);
    WEFT_ASSIGN_OR_RETURN(
        lanes.emplace_back(),
        fixture.engine->GroupLane(group, LanePurpose::kAllReduce, number,
                                  ExchangeOver(store, bootstrap.runtime(), group, absl::StrCat("call ", i))));
    // A lane is of use before other groups are formed.
    WEFT_RETURN_IF_ERROR(CheckSumOfRanks(fixture, lanes.back()));
    const absl::StatusOr<LaneId> again = fixture.engine->GroupLane(
        group, LanePurpose::kAllReduce, number,
        ExchangeOver(store, bootstrap.runtime(), group, absl::StrCat("call ", i, " again")));
    WEFT_RETURN_IF_ERROR(again.status());
    EXPECT_EQ(again->index, lanes.back().index);
  }
  for (const LaneId lane : lanes) WEFT_RETURN_IF_ERROR(CheckSumOfRanks(fixture, lane, 10));
  return absl::OkStatus();
}

TEST(GroupLanes, OfCrossingGroupsWorkBesideLanesOfAllRanks) {
  for (const NodeMap& nodes : NodeMapsOf(4)) {
    BlobStore store;
    RunRanks(nodes, [&](Bootstrap& bootstrap) { return FormAndUse(bootstrap, store, 5); });
  }
}

TEST(GroupLanes, WorkInEverySchedule) {
  for (uint64_t seed = 0; seed < ScheduleCount(40); ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 7);
    const NodeMap nodes = NodeMap::RanksPerNode(ranks, 1 + static_cast<int>(seed % 3));
    BlobStore store;
    SimOptions machine;
    machine.seed = seed;
    const SimReport report = RunSimulatedRanks(
        nodes, machine, [&](Bootstrap& bootstrap) { return FormAndUse(bootstrap, store, seed); });
    EXPECT_OK(report.status()) << Describe(nodes) << ", seed " << seed;
  }
}

// Rank 0 is alone in many groups, whose indices are then free on rank 1 only.
TEST(GroupLanes, MayHaveHolesAndThousandIndices) {
  constexpr int kAlone = 1000;
  for (const NodeMap& nodes : NodeMapsOf(3)) {
    BlobStore store;
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, size_t{64} << 20));
      Runtime& runtime = bootstrap.runtime();
      std::vector<LaneId> lanes;
      for (int i = 0; bootstrap.rank() == 0 && i < kAlone; ++i) {
        const ProcessGroup alone = GroupOf("alone", {0}, 0);
        WEFT_ASSIGN_OR_RETURN(
            lanes.emplace_back(),
            fixture.engine->GroupLane(alone, LanePurpose::kControl, i,
                                      ExchangeOver(store, runtime, alone, absl::StrCat(i))));
      }
      for (const auto& ranks : {std::vector<int>{1, 2}, {0, 1}, {2, 0}, {0, 1, 2}}) {
        if (std::find(ranks.begin(), ranks.end(), bootstrap.rank()) == ranks.end()) continue;
        const ProcessGroup group = GroupOf("some", ranks, bootstrap.rank());
        WEFT_ASSIGN_OR_RETURN(lanes.emplace_back(),
                              fixture.engine->GroupLane(group, LanePurpose::kControl, 0,
                                                        ExchangeOver(store, runtime, group, "some")));
      }
      for (const LaneId lane : lanes) WEFT_RETURN_IF_ERROR(CheckSumOfRanks(fixture, lane));
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
      for (const LaneId lane : lanes) WEFT_RETURN_IF_ERROR(CheckSumOfRanks(fixture, lane));
      return absl::OkStatus();
    });
  }
}

// Ranks 0 and 1 wait for each other in two groups. Each call ends by the deadline of its exchange.
TEST(GroupLanes, FormedInACycleEndByTheDeadlineAndNameTheRanks) {
  BlobStore store;
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    const ProcessGroup group = GroupOf("pair", {0, 1}, bootstrap.rank());
    const auto form = [&](int number, absl::Duration timeout, const char* call) {
      return fixture.engine->GroupLane(
          group, LanePurpose::kControl, number,
          ExchangeOver(store, bootstrap.runtime(), group, absl::StrCat(call, number), timeout));
    };
    EXPECT_THAT(form(bootstrap.rank(), absl::Milliseconds(50), "crossed").status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("lane pair/control of ranks 0, 1"),
                               HasSubstr(absl::StrCat("no blob from rank ", 1 - bootstrap.rank())))));
    for (const int number : {0, 1}) {
      WEFT_ASSIGN_OR_RETURN(const LaneId lane, form(number, kTestTimeout, "ordered"));
      WEFT_RETURN_IF_ERROR(CheckSumOfRanks(fixture, lane));
    }
    return absl::OkStatus();
  });
}

// An exchange that fails on one member alone leaves a lane on the others. The next call forms another one.
TEST(GroupLanes, OfWhichOneMemberKnowsNothingAreFormedAgain) {
  for (const NodeMap& nodes : NodeMapsOf(3)) {
    BlobStore store;
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
      const ProcessGroup group = GroupOf("all", {0, 1, 2}, bootstrap.rank());
      const GroupExchange whole = ExchangeOver(store, bootstrap.runtime(), group, "first");
      const auto first =
          fixture.engine->GroupLane(group, LanePurpose::kControl, 0,
                                    [&](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
                                      absl::StatusOr<std::vector<std::string>> blobs = whole(blob);
                                      if (bootstrap.rank() == 1)
                                        return absl::UnavailableError("the store has closed");
                                      return blobs;
                                    });
      EXPECT_EQ(first.ok(), bootstrap.rank() != 1);
      WEFT_ASSIGN_OR_RETURN(
          const LaneId lane,
          fixture.engine->GroupLane(group, LanePurpose::kControl, 0,
                                    ExchangeOver(store, bootstrap.runtime(), group, "second")));
      EXPECT_TRUE(!first.ok() || lane.index != first->index);
      return CheckSumOfRanks(fixture, lane);
    });
  }
}

TEST(GroupLanes, RefuseARankThatIsNoMemberOnAllMembers) {
  BlobStore store;
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, {}, kSmallSegmentBytes));
    const ProcessGroup group{"pair", {0, 1}, bootstrap.rank()};
    ProcessGroup given = group;
    if (bootstrap.rank() == 1) given.group_rank = 0;
    EXPECT_THAT(
        fixture.engine->GroupLane(given, LanePurpose::kControl, 0,
                                  ExchangeOver(store, bootstrap.runtime(), group, "wrong")),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 is not rank 0 of group pair")));
    return CheckEngineWorks(fixture);
  });
}

// Rank 0 leaves. Its peers in lanes of members only learn it, and rank 3 is not concerned.
TEST(GroupLanes, TellTheirMembersOfARankThatLeaves) {
  for (const NodeMap& nodes : NodeMapsOf(4)) {
    BlobStore store;
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      EngineOptions options;
      options.timeout = kTestTimeout;
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture,
                            EngineFixture::Make(bootstrap, options, kSmallSegmentBytes));
      if (bootstrap.rank() == 3) return absl::OkStatus();
      const ProcessGroup group = GroupOf("three", {2, 0, 1}, bootstrap.rank());
      WEFT_ASSIGN_OR_RETURN(const LaneId lane, fixture.engine->GroupLane(
                                                   group, LanePurpose::kControl, 0,
                                                   ExchangeOver(store, bootstrap.runtime(), group, "three")));
      if (bootstrap.rank() == 0) return absl::OkStatus();
      Work work = fixture.engine->Barrier(lane);
      EXPECT_THAT(work.Wait(),
                  StatusIs(absl::StatusCode::kAborted,
                           HasSubstr("rank 0 destroyed its engine before it submitted barrier")));
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
