// Operations of one lane run in order. Operations of different lanes do not wait for each other.
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Lanes, ABlockedLaneDoesNotBlockAnother) {
  RunRanksOnEveryNodeMap(4, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const LaneId blocked,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
    Work work;
    if (bootstrap.rank() != 1) work = fixture.engine->Barrier(blocked);
    WEFT_RETURN_IF_ERROR(CheckEngineWorks(fixture));
    EXPECT_TRUE(bootstrap.rank() == 1 || !work.Test());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) work = fixture.engine->Barrier(blocked);
    return work.Wait();
  });
}

// Its peers would wait for it in the first operation.
TEST(Lanes, ALaneThatOneRankCannotAddFailsOnAll) {
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    ProcessGroup group = WorldGroup(bootstrap);
    if (bootstrap.rank() == 1) group.group_rank = 2;
    EXPECT_THAT(fixture.engine->AddLane(group, LanePurpose::kControl),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 is not rank 2 of group")));
    WEFT_ASSIGN_OR_RETURN(fixture.lane,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllReduce));
    return CheckEngineWorks(fixture);
  });
}

TEST(Lanes, AfterHoldsAnOperationBackUntilTheOtherIsReady) {
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const LaneId other,
                          fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllReduce));
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kF32, 64));
    buffer.Write(0, std::vector<double>(64, 1));
    const auto reduce = [&](LaneId lane, const Work* after) {
      return fixture.engine->AllReduce(lane, buffer.data(), buffer.data(), DType::kF32, 64, ReduceOp::kSum,
                                       {}, after);
    };
    Work first;
    Work second;
    if (bootstrap.rank() == 0) {
      first = reduce(fixture.lane, nullptr);
      second = reduce(other, &first);
      // Rank 1 has not submitted the first operation, so the second one stays queued.
      EXPECT_THAT(second.Wait(absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("queued"), HasSubstr("after all_reduce"))));
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (bootstrap.rank() == 1) {
      first = reduce(fixture.lane, nullptr);
      second = reduce(other, &first);
    }
    WEFT_RETURN_IF_ERROR(second.Wait());
    EXPECT_TRUE(first.Test());
    EXPECT_EQ(buffer.Read(0, 64), std::vector<double>(64, 4));
    WEFT_RETURN_IF_ERROR(first.WaitReleased());
    return second.WaitReleased();
  });
}

// Checks the order with the times at which operations became *ready*, as the flight recorder has them.
void ExpectInOrderOnEveryLane(const std::string& json, size_t operations) {
  const nlohmann::json recorded = nlohmann::json::parse(json);
  std::map<std::string, std::pair<int64_t, int64_t>> last;  // By lane: sequence and time.
  EXPECT_EQ(recorded["operations"].size(), operations);
  for (const auto& operation : recorded["operations"]) {
    auto& [sequence, ready_ns] = last[operation["lane"]];
    EXPECT_EQ(operation["sequence"].get<int64_t>(), sequence + 1);
    EXPECT_GE(operation["ready_ns"].get<int64_t>(), ready_ns);
    sequence = operation["sequence"];
    ready_ns = operation["ready_ns"];
  }
}

TEST(Lanes, OperationsCompleteInTheOrderOfSubmission) {
  constexpr int kOperations = 100;
  constexpr int64_t kCount = 50;
  RunRanksOnEveryNodeMap(3, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::vector<LaneId> lanes = {fixture.lane};
    for (const LanePurpose purpose : {LanePurpose::kAllReduce, LanePurpose::kContext}) {
      WEFT_ASSIGN_OR_RETURN(lanes.emplace_back(), fixture.engine->AddLane(WorldGroup(bootstrap), purpose));
    }
    std::vector<TestBuffer> buffers;
    std::vector<Work> works;
    for (int i = 0; i < kOperations; ++i) {
      WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
      buffer.Write(0, std::vector<double>(kCount, i));
      works.push_back(fixture.engine->AllReduce(lanes[static_cast<size_t>(i) % lanes.size()], buffer.data(),
                                                buffer.data(), DType::kI32, kCount, ReduceOp::kSum));
      buffers.push_back(std::move(buffer));
    }
    for (Work& work : works) WEFT_RETURN_IF_ERROR(work.WaitReleased());
    for (int i = 0; i < kOperations; ++i) {
      EXPECT_EQ(buffers[static_cast<size_t>(i)].Read(0, kCount), std::vector<double>(kCount, 3.0 * i));
    }
    ExpectInOrderOnEveryLane(fixture.engine->RecorderJson(), kOperations);
    return absl::OkStatus();
  });
}

// More barriers than the descriptor ring has slots.
TEST(Lanes, SubmittingManyBarriersDoesNotWaitForALateRank) {
  RunRanks(NodeMap{{0, 0, 1}}, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    const bool is_late = bootstrap.rank() == 2;
    std::vector<Work> works;
    const auto submit = [&] {
      for (int i = 0; i < 200; ++i) works.push_back(fixture.engine->Barrier(fixture.lane));
    };
    if (!is_late) submit();
    for (const Work& work : works) EXPECT_FALSE(work.Test());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    if (is_late) submit();
    for (Work& work : works) WEFT_RETURN_IF_ERROR(work.Wait());
    return absl::OkStatus();
  });
}

// Every thread has lanes of its own, and waits for its operations beside the others.
TEST(Lanes, ThreadsMaySubmitAtOnce) {
  constexpr int kThreads = 3;
  constexpr int64_t kCount = 700;
  RunRanksOnEveryNodeMap(2, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
    std::vector<LaneId> lanes;
    for (int i = 0; i < kThreads; ++i) {
      WEFT_ASSIGN_OR_RETURN(lanes.emplace_back(),
                            fixture.engine->AddLane(WorldGroup(bootstrap), LanePurpose::kAllReduce));
    }
    const auto run = [&](int thread) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(TestBuffer buffer, TestBuffer::Make(*fixture.pool, true, DType::kI32, kCount));
      int message = -1;
      for (int i = 0; i < 60; ++i) {
        buffer.Write(0, std::vector<double>(kCount, thread + i));
        Work receive =
            fixture.engine->Receive({1 - bootstrap.rank(), thread}, &message, DType::kU8, sizeof(message));
        Work send = fixture.engine->Send({1 - bootstrap.rank(), thread}, &i, DType::kU8, sizeof(i));
        Work reduce = fixture.engine->AllReduce(lanes[static_cast<size_t>(thread)], buffer.data(),
                                                buffer.data(), DType::kI32, kCount, ReduceOp::kSum);
        Work barrier = fixture.engine->Barrier(lanes[static_cast<size_t>(thread)]);
        for (Work* work : {&barrier, &reduce, &receive, &send}) WEFT_RETURN_IF_ERROR(work->WaitReleased());
        EXPECT_EQ(buffer.Read(0, kCount), std::vector<double>(kCount, 2.0 * (thread + i)));
        EXPECT_EQ(message, i);
      }
      return absl::OkStatus();
    };
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&run, thread] { EXPECT_OK(run(thread)); });
    for (std::thread& thread : threads) thread.join();
    return BootstrapBarrier(bootstrap);
  });
}

// One rank's run of a random program. All ranks run the same program, but wait at different times.
class RandomSchedule {
 public:
  RandomSchedule(EngineFixture& fixture, std::vector<LaneId> lanes, uint32_t seed)
      : fixture_(fixture), lanes_(std::move(lanes)), program_(seed), own_(seed * 31 + Rank()) {}

  absl::Status Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      WEFT_RETURN_IF_ERROR(SubmitOne());
      if (own_() % 4 == 0) WEFT_RETURN_IF_ERROR(works_[own_() % works_.size()].Wait());
    }
    for (Work& work : works_) WEFT_RETURN_IF_ERROR(work.WaitReleased());
    for (size_t i = 0; i < buffers_.size(); ++i) {
      EXPECT_EQ(buffers_[i].Read(0, static_cast<int64_t>(expected_[i].size())), expected_[i]);
    }
    return absl::OkStatus();
  }

 private:
  uint32_t Rank() const { return static_cast<uint32_t>(fixture_.engine->bootstrap().rank()); }

  absl::Status SubmitOne() {
    // All ranks draw the same values from `program_`.
    const LaneId lane = lanes_[program_() % lanes_.size()];
    const auto count = static_cast<int64_t>(program_() % 300);
    OpOptions options;
    options.priority = static_cast<Priority>(program_() % 4);
    const bool gathers = program_() % 2 == 0;
    const bool chained = program_() % 3 == 0;
    const Work* after = chained && !works_.empty() ? &works_[program_() % works_.size()] : nullptr;

    const ProcessGroup& group = fixture_.engine->group(lane);
    const int64_t total = gathers ? count * group.size() : count;
    const bool in_node_memory = own_() % 2 == 0;
    WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                          TestBuffer::Make(*fixture_.pool, in_node_memory, DType::kI32, total));
    std::vector<double> expected;
    if (gathers) {
      const int64_t begin = count * group.group_rank;
      buffer.Write(begin, std::vector<double>(static_cast<size_t>(count), group.group_rank));
      for (int64_t i = 0; i < total; ++i) {
        const int64_t owner = i / count;
        expected.push_back(static_cast<double>(owner));
      }
      works_.push_back(fixture_.engine->AllGather(lane, buffer.At(begin), buffer.data(), DType::kI32, total,
                                                  {}, options, after));
    } else {
      buffer.Write(0, std::vector<double>(static_cast<size_t>(count), 1));
      expected.assign(static_cast<size_t>(count), group.size());
      works_.push_back(fixture_.engine->AllReduce(lane, buffer.data(), buffer.data(), DType::kI32, count,
                                                  ReduceOp::kSum, options, after));
    }
    buffers_.push_back(std::move(buffer));
    expected_.push_back(std::move(expected));
    return absl::OkStatus();
  }

  EngineFixture& fixture_;
  std::vector<LaneId> lanes_;
  std::mt19937 program_;
  std::mt19937 own_;
  std::vector<TestBuffer> buffers_;
  std::vector<std::vector<double>> expected_;
  std::vector<Work> works_;
};

// Lanes of the world, of the even or the odd ranks, and of the lower or the upper half of the ranks.
absl::StatusOr<std::vector<LaneId>> CrossingLanes(EngineFixture& fixture) {
  Bootstrap& bootstrap = fixture.engine->bootstrap();
  const int rank = bootstrap.rank();
  const int half = bootstrap.size() / 2;
  ProcessGroup parity{rank % 2 == 0 ? "even" : "odd", {}, rank / 2};
  ProcessGroup side{rank < half ? "lower" : "upper", {}, rank % half};
  for (int i = 0; i < half; ++i) {
    parity.ranks.push_back(2 * i + rank % 2);
    side.ranks.push_back(rank / half * half + i);
  }
  std::vector<LaneId> lanes = {fixture.lane};
  for (const auto& [group, purpose] : {std::pair{WorldGroup(bootstrap), LanePurpose::kAllReduce},
                                       {parity, LanePurpose::kReduceScatter},
                                       {side, LanePurpose::kContext},
                                       {parity, LanePurpose::kAllReduce}}) {
    WEFT_ASSIGN_OR_RETURN(lanes.emplace_back(), fixture.engine->AddLane(group, purpose));
  }
  return lanes;
}

TEST(Lanes, RandomSchedulesOverCrossingGroupsComplete) {
  constexpr int kSchedules = 72;
  const std::vector<NodeMap> maps = {NodeMap::OneNode(4), NodeMap::RanksPerNode(4, 2), NodeMap{{0, 1, 0, 1}},
                                     NodeMap::RanksPerNode(4, 1)};
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = 128;
  options.piece_bytes = 256;
  options.lane_window_bytes = 256;
  options.yield_window_bytes = 128;
  for (size_t m = 0; m < maps.size(); ++m) {
    RunRanks(maps[m], [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
      WEFT_ASSIGN_OR_RETURN(const std::vector<LaneId> lanes, CrossingLanes(fixture));
      for (size_t seed = m; seed < kSchedules; seed += maps.size()) {
        SCOPED_TRACE(absl::StrCat("seed ", seed));
        RandomSchedule schedule(fixture, lanes, static_cast<uint32_t>(seed));
        WEFT_RETURN_IF_ERROR(Annotate(schedule.Run(12), absl::StrCat("seed ", seed)));
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
